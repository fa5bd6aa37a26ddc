"""A wait that ends in vain says what it was for."""

from __future__ import annotations

import pytest
from tests.waiting import until, wait_until


async def test_what_became_true_is_returned() -> None:
    rising = iter([0, 0, 3])
    assert await until(lambda: next(rising)) == 3
    falling = iter([None, "there"])

    async def found() -> str | None:
        return next(falling)

    assert await until(found) == "there"


async def test_what_never_came_is_named() -> None:
    came: list[int] = []
    with pytest.raises(AssertionError, match=r"still not after 0.01 s: .*len\(came\) == 2.*test_waiting.py:\d+.*: two"):
        await until(lambda: len(came) == 2, "two", seconds=0.01)


def test_turns_are_taken_in_between() -> None:
    came: list[int] = []
    assert wait_until(lambda: came[2:], turn=lambda: came.append(1)) == [1]
    with pytest.raises(AssertionError, match=r"still not after 0 s: .*: 3 came"):
        wait_until(lambda: len(came) > 3, lambda: f"{len(came)} came", seconds=0)
