"""Facades: the loop's thread lives as long as the `with`, and so does what runs on it."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from headrace.sdk.blocking import Facade, blocking

NAME = "facade under test"


class Target:
    """Notes its life, and in which thread it is."""

    def __init__(self, fails: bool = False) -> None:
        self.fails = fails
        self.life: list[str] = []

    async def __aenter__(self) -> Target:
        self.life.append("entered")
        if self.fails:
            raise LookupError("no broker")
        return self

    async def __aexit__(self, *_: object) -> None:
        self.life.append("left")

    async def run(self, value: int) -> tuple[int, str]:
        """Where it runs."""
        return value, threading.current_thread().name


class Blocking(Facade[Any]):
    run = blocking(Target.run)


def threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name == NAME]


def test_calls_run_on_its_thread_which_ends_with_it() -> None:
    target = Target()
    with Blocking(target, NAME) as facade:
        assert facade.run(3) == (3, NAME)
        assert target.life == ["entered"]
    assert target.life == ["entered", "left"]
    assert facade._loop.is_closed()
    assert not threads()


def test_what_cannot_be_entered_leaves_no_thread() -> None:
    target = Target(fails=True)
    facade = Blocking(target, NAME)
    with pytest.raises(LookupError, match="no broker"):
        facade.__enter__()
    assert target.life == ["entered"]
    assert facade._loop.is_closed()
    assert not threads()


def test_methods_are_documented_as_their_targets_are() -> None:
    assert Blocking.run.__doc__ == "Where it runs."
