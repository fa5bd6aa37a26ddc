"""Rates of the whole broker, and what is wrong with it now, in words."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from headrace.broker.figures.changes import Row
from headrace.broker.figures.columns import GROUPS, KINDS, NODE, QUEUES, TOPICS, place
from headrace.broker.transactions.transaction import Status

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

# Rates are over about this long.
RATE_SECONDS = 10.0
SAMPLES_MAX = 64
WARNING, CRITICAL = SEVERITIES = "warning", "critical"
PROBLEMS_MAX = 100
STEP_ROWS = 128
DISK_WARNING, DISK_CRITICAL = 0.15, 0.05
# From when on a reader counts as behind, and a transaction as one that hangs.
BEHIND_MS = 300_000
HANGING_MS = 60_000


class Sample(NamedTuple):
    """Counters of the whole broker at a time of the loop."""

    at: float
    messages_in: int
    bytes_in: int
    bytes_out: int
    requests: int
    errors: int


class Samples:
    """The last of them."""

    def __init__(self) -> None:
        self._kept: deque[Sample] = deque(maxlen=SAMPLES_MAX)

    def add(self, sample: Sample) -> None:
        self._kept.append(sample)

    def rates(self) -> dict[str, float | None]:
        """What came a second lately; None before the second look."""
        last = self._kept[-1] if self._kept else None
        first = next((each for each in self._kept if last is not None and last.at - each.at <= RATE_SECONDS), None)
        if first is last and len(self._kept) > 1:
            first = self._kept[-2]
        rates: dict[str, float | None] = {}
        for name in Sample._fields[1:]:
            if first is None or last is None or last.at <= first.at:
                rates[name] = None
            else:
                grown = getattr(last, name) - getattr(first, name)
                rates[name] = round(max(grown, 0) / (last.at - first.at), 3)
        return rates


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is wrong now."""

    kind: str
    severity: str
    message: str
    value: float
    subject: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Overview:
    """The broker in short."""

    at_ms: int
    node: Mapping[str, object]
    rates: Mapping[str, float | None]
    problems: list[Problem]
    """The worst first, and no more than `PROBLEMS_MAX`."""
    problems_total: int


async def overview(broker: Broker) -> Overview:
    """What the figures say, once they are renewed."""
    figures = broker.figures
    await figures.renew()
    row = figures.changes.get((NODE, str(broker.node_id))) or ()
    node = dict(zip(KINDS[NODE].values, row, strict=False))
    found = [each async for each in _problems(broker, node)]
    found.sort(key=lambda each: each.severity != CRITICAL)
    return Overview(figures.at_ms, node, figures.samples.rates(), found[:PROBLEMS_MAX], len(found))


async def _problems(broker: Broker, node: Mapping[str, object]) -> AsyncIterator[Problem]:
    capacity, free = node.get("disk_bytes"), node.get("disk_free_bytes")
    if isinstance(capacity, int) and isinstance(free, int) and capacity and free < capacity * DISK_WARNING:
        severity = CRITICAL if free < capacity * DISK_CRITICAL else WARNING
        percent = 100 * free / capacity
        yield Problem(
            "disk",
            severity,
            f"{percent:.1f}% of the disk is free ({free >> 20} MiB). Shorten retention, delete topics, or add room.",
            free,
        )
    group = broker.membership
    if broker.log.is_replicated and len(group.isr) < len(group.replicas):
        missing = sorted(set(group.replicas) - set(group.isr))
        yield Problem(
            "not_in_sync",
            CRITICAL if len(group.isr) < group.min_isr else WARNING,
            f"nodes {', '.join(map(str, missing))} are not in sync. Look at their logs, or start them again.",
            len(missing),
        )
    for each in broker.metrics.doors.values():
        if each.connections_refused:
            yield Problem(
                "connections_refused",
                WARNING,
                f"{each.connections_refused} connections to the door {each.name} were refused at the limit since the "
                "start. Raise connections_max, or find who opens so many.",
                each.connections_refused,
                {"door": each.name},
            )
    if broker.prepared.parked:
        yield Problem(
            "half_parked",
            WARNING,
            f"{broker.prepared.parked} half messages were given up and wait for a decision: `headrace half list`.",
            broker.prepared.parked,
        )
    if broker.timer.dispatcher.refused:
        yield Problem(
            "timer_refused",
            WARNING,
            f"delayed messages were due {broker.timer.dispatcher.refused} times and their topic refused them.",
            broker.timer.dispatcher.refused,
        )
    async for problem in _of_rows(broker):
        yield problem
    if broker.transactions.open:
        async for problem in _of_transactions(broker):
            yield problem


async def _of_rows(broker: Broker) -> AsyncIterator[Problem]:
    rows, now_ms = broker.figures.rows, broker.runtime.clock.now_ms()
    seen = 0
    for kind, judge in _JUDGES.items():
        for names in rows.suspects(kind):
            seen += 1
            if seen % STEP_ROWS == 0:
                await asyncio.sleep(0)
            row = rows.get(kind, names)
            problem = None if row is None else judge(names, row, now_ms)
            if problem is not None:
                yield problem


_PARTITIONS, _OFFLINE, _PASSED_BY, _BLOCKED = (
    place(TOPICS, name) for name in ("partitions", "offline", "passed_by", "blocked")
)


def _judge_topic(names: tuple[str, ...], row: Row, now_ms: int) -> Problem | None:
    topic = names[0]
    subject = {"topic": topic}
    offline, passed_by, blocked = row[_OFFLINE], row[_PASSED_BY], row[_BLOCKED]
    if isinstance(offline, int) and offline:
        message = f"{offline} of the {row[_PARTITIONS]} partitions of '{topic}' are offline: see the broker's log."
        return Problem("offline_partition", CRITICAL, message, offline, subject)
    if isinstance(passed_by, int) and passed_by:
        message = (
            f"{passed_by} records of '{topic}' went before a group had read them. Keep them longer, or read faster."
        )
        return Problem("passed_by", WARNING, message, passed_by, subject)
    if isinstance(blocked, int) and blocked:
        message = f"{blocked} requests of producers wait for the readers of '{topic}'."
        return Problem("producers_blocked", WARNING, message, blocked, subject)
    return None


_PAUSED, _DEPTH, _STUCK, _CONSUMERS, _QUEUE_OLDEST = (
    place(QUEUES, name) for name in ("paused", "depth", "stuck", "consumers", "oldest_ms")
)


def _judge_queue(names: tuple[str, ...], row: Row, now_ms: int) -> Problem | None:
    topic, queue = names
    stuck, ready, oldest, consumers = row[_STUCK], row[_DEPTH], row[_QUEUE_OLDEST], row[_CONSUMERS]
    if isinstance(stuck, int) and stuck:
        message = f"{stuck} dead messages of the queue '{queue}' of '{topic}' cannot move to the dead-letter topic."
        return Problem("stuck_dead_letter", CRITICAL, message, stuck, {"topic": topic, "queue": queue})
    if (
        isinstance(oldest, int)
        and now_ms - oldest > BEHIND_MS
        and isinstance(ready, int)
        and ready
        and not row[_PAUSED]
    ):
        seconds = (now_ms - oldest) // 1000
        why = "It has no consumer." if not consumers else f"It has {consumers} consumers."
        message = f"the oldest message of the queue '{queue}' of '{topic}' has waited for {seconds} s. {why}"
        return Problem("queue_behind", WARNING, message, ready, {"topic": topic, "queue": queue})
    return None


_MEMBERS, _LAG, _GROUP_OLDEST = (place(GROUPS, name) for name in ("members", "lag", "oldest_ms"))


def _judge_group(names: tuple[str, ...], row: Row, now_ms: int) -> Problem | None:
    group, topic = names
    lag, oldest = row[_LAG], row[_GROUP_OLDEST]
    if isinstance(oldest, int) and now_ms - oldest > BEHIND_MS and isinstance(lag, int) and lag:
        why = "It has no member." if not row[_MEMBERS] else f"It has {row[_MEMBERS]} members."
        message = f"the group '{group}' is {lag} messages and {(now_ms - oldest) // 1000} s behind on '{topic}'. {why}"
        return Problem("group_behind", WARNING, message, lag, {"group": group, "topic": topic})
    return None


_JUDGES = {TOPICS: _judge_topic, QUEUES: _judge_queue, GROUPS: _judge_group}


async def _of_transactions(broker: Broker) -> AsyncIterator[Problem]:
    now_ms = broker.runtime.clock.now_ms()
    for name, each in await broker.transactions.list():
        age = now_ms - each.started_ms
        if each.status is Status.ONGOING and age > max(HANGING_MS, each.timeout_ms):
            message = f"the transaction of '{name}' is open for {age // 1000} s: readers that skip open ones wait."
            yield Problem("transaction_hanging", CRITICAL, message, age / 1000, {"transactional_id": name})
