"""Claims over a chunk of batches: who gets what, what is passed over, who waits for a key, where a batch breaks."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.kernels.queue_kernels import BASE, COMPILED, INTERPRETED, Build, Message, batch_at, control_at
from tests.longer import examples

from headrace.broker.queues.ledger import BLOCKED, DONE, IN_FLIGHT
from headrace.errors import AppendRefused, InvalidRecords
from headrace.format import records

MAX = 1 << 20
BUILDS = pytest.mark.parametrize("build", [COMPILED, INTERPRETED], ids=["compiled", "interpreted"])


def claim(
    build: Build, feed: Any, ledger: Any, rules: Any, limit: int = 100, again: bool = False, size: int = MAX
) -> Any:
    return build.delivery.claim(feed, ledger, rules, 3, 1, 60_000, limit, size, again)


def rules(build: Build, keys: Any = None, conditions: Any = (), lookahead: int = 10) -> Any:
    return build.delivery.Rules("q", list(conditions), keys, lookahead)


def plain(*values: bytes, key: bytes | None = None) -> list[Message]:
    return [(key, value, []) for value in values]


@BUILDS
@pytest.mark.parametrize("codec", [0, 1, 4])
def test_a_chunk_is_shared_out_and_gaps_are_passed_over(build: Build, codec: int) -> None:
    headers: list[tuple[str, bytes | None]] = [("a", b"1"), ("b", None)]
    chunk = (
        batch_at(10, [(b"k", b"v0", headers), (None, None, []), (b"", b"v2", [])], codec)
        + control_at(13)
        + batch_at(20, plain(b"x", b"y", b"z"), codec, [False, True, False])
    )
    feed, ledger = build.delivery.Feed(MAX), build.ledger.Ledger(9)
    feed.fill(chunk, 9)
    first = claim(build, feed, ledger, rules(build), 2)
    assert [message[:2] for message in first.messages()] == [(10, 1), (11, 1)]
    second = claim(build, feed, ledger, rules(build))
    # Asked after the feed has gone on: what was claimed does not change.
    assert [message[3:] for message in first.messages()] == [(b"k", b"v0", headers), (None, None, [])]
    assert [(message[0], message[4]) for message in second.messages()] == [(12, b"v2"), (21, b"y")]
    assert (second.lane, ledger.cursor, ledger.in_flight) == (3, 23, 4)
    assert [ledger.state_of(offset)[0] for offset in (9, 13, 19, 20, 22)] == [DONE] * 5


@BUILDS
def test_one_key_at_a_time_within_the_look_ahead(build: Build) -> None:
    keys = build.delivery.Keys()
    chunk = b"".join(
        batch_at(at, plain(b"%d" % at, key=key)) for at, key in enumerate([b"a", b"a", b"b", b"a", b"a", b"c"])
    )
    feed, ledger = build.delivery.Feed(MAX), build.ledger.Ledger(0)
    feed.fill(chunk, 0)
    ordered = rules(build, keys, lookahead=2)
    assert [message[0] for message in claim(build, feed, ledger, ordered).messages()] == [0, 2]
    assert feed.stands
    assert (ledger.cursor, ledger.state_of(1)[0], ledger.state_of(3)[0]) == (4, BLOCKED, BLOCKED)
    assert ledger.finish(0, 1, 1)
    following = keys.release(0)
    assert following == 1
    ledger.unblock(1)
    # There is room again, up to the bound.
    assert [message[0] for message in claim(build, feed, ledger, ordered).messages()] == [5]
    again = build.delivery.Feed(MAX)
    again.fill(chunk, 0)
    assert [message[:2] for message in claim(build, again, ledger, ordered, again=True).messages()] == [(1, 1)]
    # One that waits leaves; the rest keep their order.
    keys.leave(3)
    assert (keys.release(1), keys.release(4), keys.waiter_of) == (4, None, {})


@BUILDS
def test_a_message_for_one_queue_and_a_filter(build: Build) -> None:
    mine: Message = (None, b"mine", [("headrace-for-queue", b"q"), ("tag", b"x")])
    other: Message = (None, b"other", [("headrace-for-queue", b"else"), ("tag", b"x")])
    plain_one: Message = (b"k", b"tagged", [("tag", b"x")])
    feed, ledger = build.delivery.Feed(MAX), build.ledger.Ledger(0)
    feed.fill(batch_at(0, [mine, other, plain_one, (None, b"none", [])]), 0)
    condition = (build.delivery.HEADER, "tag", frozenset([b"x"]), False)
    got = claim(build, feed, ledger, rules(build, conditions=[condition]))
    assert [message[4] for message in got.messages()] == [b"mine", b"tagged"]
    assert [ledger.state_of(offset)[0] for offset in range(4)] == [IN_FLIGHT, DONE, IN_FLIGHT, DONE]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4), st.booleans()), max_size=40), st.integers(0, 60))
@settings(deadline=None, max_examples=100, suppress_health_check=list(HealthCheck))
def test_aborted_batches_are_passed_over(steps: list[tuple[int, int, bool]], start: int) -> None:
    """Producers 1 to 3 write transactions, 0 plain batches; no record ends the transaction of its producer."""
    log: list[tuple[int, bytes]] = []
    opened: dict[int, list[int]] = {}
    aborted: list[tuple[int, int, int]] = []
    kept: set[int] = set()
    end = 0
    for producer, count, commit in [*steps, (1, 0, True), (2, 0, True), (3, 0, True)]:
        begun = opened.setdefault(producer, [])
        if count and producer:
            attributes = {"producer_id": producer, "producer_epoch": 0, "base_sequence": 0, "attributes": 0x10}
            batch = records.build([(1_000, None, b"%d" % (end + each), []) for each in range(count)], **attributes)
            begun += range(end, end + count)
        elif count:
            batch = records.build([(1_000, None, b"%d" % (end + each), []) for each in range(count)])
            kept.update(range(end, end + count))
        elif producer and begun:
            batch = records.control(int(commit), 0, producer, 0, 1_000)
            if commit:
                kept.update(begun)
            else:
                aborted.append((producer, begun[0], end))
            del opened[producer]
            count = 1
        else:
            continue
        BASE.pack_into(batch, 0, end)
        end += count
        log.append((end, bytes(batch)))
    start = min(start, end)
    chunk = b"".join(batch for after, batch in log if after > start)
    overlapping = [each for each in aborted if each[2] >= start]
    for build in (COMPILED, INTERPRETED):
        feed, ledger = build.delivery.Feed(MAX), build.ledger.Ledger(start)
        feed.fill(chunk, start, overlapping)
        got: list[int] = []
        while (claimed := claim(build, feed, ledger, rules(build), limit=3)).count:
            got += [message[0] for message in claimed.messages()]
        assert got == sorted(offset for offset in kept if offset >= start)
        assert (ledger.cursor, ledger.in_flight) == (end, len(got))


def broken(good: int, bad: int) -> bytes:
    batch = bytearray(batch_at(0, plain(*(b"good-%d" % number for number in range(good + bad)))))
    at = bytes(batch).index(b"good-%d" % good) - 6
    batch[at:] = b"\xff" * (len(batch) - at)
    struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[21:]))
    return bytes(batch)


@BUILDS
def test_what_stands_before_a_break_is_handed_out_first(build: Build) -> None:
    feed, ledger = build.delivery.Feed(MAX), build.ledger.Ledger(0)
    feed.fill(broken(3, 2) + batch_at(5, plain(b"after")), 0)
    assert claim(build, feed, ledger, rules(build)).count == 3
    assert ledger.in_flight == 3
    for _ in range(2):
        with pytest.raises(InvalidRecords):
            claim(build, feed, ledger, rules(build))
    assert (feed.base, feed.after, feed.offset, ledger.in_flight) == (0, 5, 2, 3)
    feed.drop_batch()
    assert [message[4] for message in claim(build, feed, ledger, rules(build)).messages()] == [b"after"]


@given(st.integers(0, 200), st.integers(0, 255), st.booleans())
@settings(deadline=None, max_examples=examples(150), suppress_health_check=list(HealthCheck))
def test_both_builds_do_the_same_with_damage(at: int, byte: int, reseal: bool) -> None:
    batch = bytearray(batch_at(0, [(b"k", b"v" * 20, [("h", b"x")])] * 5))
    batch[8 + at % (len(batch) - 8)] = byte
    if reseal:
        struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[21:]))
    outcomes = []
    for build in (COMPILED, INTERPRETED):
        feed, ledger = build.delivery.Feed(1 << 16), build.ledger.Ledger(0)
        feed.fill(bytes(batch), 0)
        try:
            got = claim(build, feed, ledger, rules(build)).messages()
            outcomes.append((got, ledger.cursor, feed.after))
        except AppendRefused as error:
            outcomes.append((type(error), ledger.cursor, feed.after))
    assert outcomes[0] == outcomes[1]
