"""What came together and is settled together, and how far that lets a group go."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.waiting import SECONDS

from headrace.sdk.batch_runner import BatchRunner
from headrace.sdk.fetched_batch import FetchedBatch, FetchedMessages, join_parts, overlap
from headrace.sdk.message import Message
from headrace.sdk.puller import Puller, Track


@dataclass(frozen=True)
class Raw:
    """A message as the library gives it."""

    at: tuple[int, int]

    def topic(self) -> str:
        return "t"

    def value(self) -> bytes:
        return b"%d" % self.at[1]

    def key(self) -> None:
        return None

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return [("empty", None)] if self.at[1] % 2 else None

    def timestamp(self) -> tuple[int, int]:
        return 1, 7

    def partition(self) -> int:
        return self.at[0]

    def offset(self) -> int:
        return self.at[1]


class Single:
    """One message, settled by itself."""

    def __init__(self, puller: Puller, raw: Any, track: Track) -> None:
        self.message = Message("t", raw.value(), partition=raw.partition(), offset=raw.offset())
        self._settle = lambda: puller.settle(track, raw.offset(), raw.offset() + 1, 1)

    def ack(self, sent: Any = ()) -> None:
        self._settle()

    def retry(self, after: float | None, reason: str) -> None: ...

    def reject(self, reason: str) -> None: ...


@pytest.fixture
async def puller() -> Puller:
    return Puller({"group.id": "g", "log_level": 0}, "t", lambda puller, found: None)


def lot(puller: Puller, *places: tuple[int, int]) -> FetchedBatch:
    return FetchedBatch(puller, [Raw(place) for place in places], Single)


def moved(puller: Puller) -> dict[int, int]:
    """How far the group may say that it is."""
    return dict(puller._moved)


async def test_a_lot_is_settled_in_one_step(puller: Puller) -> None:
    first = lot(puller, (0, 5), (0, 6), (1, 9), (0, 8))
    second = lot(puller, (0, 9))
    assert first.values() == [b"5", b"6", b"9", b"8"]
    second.ack()
    assert moved(puller) == {}
    first.ack()
    assert moved(puller) == {0: 10, 1: 10}
    assert puller._through == 5
    first.ack()
    assert puller._through == 5


async def test_one_by_one_it_moves_one_by_one(puller: Puller) -> None:
    taken_apart = lot(puller, (0, 5), (0, 6), (0, 8))
    assert taken_apart.whole
    for delivery, position in zip(taken_apart, (6, 7, 9), strict=True):
        delivery.ack()
        assert moved(puller) == {0: position}
    assert not taken_apart.whole
    assert puller._through == 3
    last = lot(puller, (0, 9), (0, 10))
    assert [each.message.offset for each in last[1:]] == [10]
    last.ack()
    assert moved(puller) == {0: 11}


async def test_joined_lots_stay_whole_and_others_do_not(puller: Puller) -> None:
    both = join_parts([lot(puller, (0, 1), (1, 1)), lot(puller, (0, 2))])
    assert isinstance(both, FetchedBatch)
    assert both.whole
    assert len(both) == 3
    both.ack()
    assert moved(puller) == {0: 3, 1: 2}
    apart = join_parts([lot(puller, (0, 3), (0, 4)), [Single(puller, Raw((0, 5)), puller.begin(0, 5))]])
    assert not isinstance(apart, FetchedBatch)
    for delivery in apart:
        delivery.ack()
    assert moved(puller) == {0: 6, 1: 2}


async def test_what_was_taken_away_does_not_move_what_was_given_again(puller: Puller) -> None:
    before = lot(puller, (0, 1), (0, 2))
    puller._forget([0])
    again = lot(puller, (0, 1))
    before.ack()
    assert moved(puller) == {}
    assert puller._through == 2
    again.ack()
    assert moved(puller) == {0: 2}


def test_messages_are_made_when_they_are_looked_at() -> None:
    messages = FetchedMessages([Raw(at) for at in ((0, 4), (0, 5), (1, 2), (1, 4), (0, 6))])
    assert messages.runs() == [(0, 4, 2, 0), (1, 2, 1, 2), (1, 4, 1, 3), (0, 6, 1, 4)]
    assert messages[1] == Message("t", b"5", None, {"empty": b""}, 0, 5, 7)
    assert [each.offset for each in messages] == [4, 5, 2, 4, 6]
    assert [each.offset for each in messages[2:4]] == [2, 4]
    assert messages.topic == "t"


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 2)), min_size=1, max_size=30), st.randoms())
def test_a_position_is_behind_everything_that_is_open(sizes: list[tuple[int, int]], chance: Any) -> None:
    """Things of several offsets, with gaps between them, that are settled in any order."""
    starts = [0, *accumulate(size + gap for size, gap in sizes)]
    spans = [(start, start + size) for start, (size, _) in zip(starts, sizes, strict=False)]
    track = Track(0)
    for start, _ in spans:
        track.begin(start)
    left = dict(spans)
    position = -1
    for start, end in chance.sample(spans, len(spans)):
        del left[start]
        found = track.settle(start, end)
        position = position if found is None else found
        behind = [ended for begun, ended in spans if begun < min(left, default=1 << 60)]
        assert position == max(behind, default=-1)


def test_spans_overlap_where_a_message_is_in_both() -> None:
    assert overlap([(0, 5, 10)], [(1, 5, 10), (0, 9, 12)])
    assert overlap([(0, 5, 10)], [(0, 0, 6)])
    assert overlap([(0, 5, 10)], [(0, 6, 7)])
    assert not overlap([(0, 5, 10)], [(0, 10, 12)])
    assert not overlap([(0, 5, 10)], [(0, 0, 5)])
    assert not overlap([(0, 5, 10)], [(1, 5, 10)])


async def test_what_is_read_again_waits_for_the_worker_that_has_it() -> None:
    """A partition that was taken away and given back is read from what was committed."""
    streaming: Any = object.__new__(BatchRunner)
    streaming._at_work = {}
    steps: list[str] = []
    go = asyncio.Event()

    async def work(name: str, *spans: tuple[int, int, int]) -> None:
        async with streaming._alone(spans):
            steps.append(f"{name} begins")
            await go.wait()
            steps.append(f"{name} ends")

    first = asyncio.create_task(work("first", (0, 0, 10)))
    await asyncio.sleep(0)
    others = [asyncio.create_task(work("again", (0, 9, 12))), asyncio.create_task(work("other", (1, 0, 10)))]
    for _ in range(10):
        await asyncio.sleep(0)
    assert steps == ["first begins", "other begins"]
    go.set()
    await asyncio.wait_for(asyncio.gather(first, *others), SECONDS)
    assert steps.index("again begins") > steps.index("first ends")
    assert streaming._at_work == {}
