"""`replay`: a range of records once more, through a function, into another topic or a table.

What is read is fixed at the start (`plan.py`) and read in rounds. At full speed every round is written exactly once: to
a topic in transactions that the driver decides about, as the sink does, where the note of the decision holds the plan
and the round; to a table by commits of a manifest. A replay that is started again under the same name, or with the same
folder, goes on behind the last round. No consumer group is asked or moved.

With a speed, records leave when they are due (`pacer.py`), to be seen at once. That is for tests under load: a task
that fails is repeated, and a run that is killed begins where `since` puts it.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

import pyarrow as pa
import structlog

from headrace.logs import log_like_a_library
from headrace.pipeline import read_plan, tables
from headrace.pipeline.broker import make_client
from headrace.pipeline.jobs import rounds
from headrace.pipeline.jobs.folders import PLAN, REPLAY, check_folder, target
from headrace.pipeline.jobs.replay import functions
from headrace.pipeline.jobs.replay.delivery import Answer, AtOnce, CountOnly, Deliver, IntoFile, IntoTransaction, Shape
from headrace.pipeline.jobs.replay.pacer import Pace
from headrace.pipeline.jobs.replay.plan import ROUND_ROWS, Plan, find_reached, plan_of
from headrace.pipeline.jobs.replay.runner import Runner
from headrace.pipeline.manifest import ParquetFolder, hold_lock, newest
from headrace.pipeline.option_values import InvalidOption
from headrace.pipeline.options import Partition, Position, SinkOptions, SourceOptions, parse_sink
from headrace.pipeline.origin import Catalogue, Range
from headrace.pipeline.range_reader import read_in_order
from headrace.pipeline.sink_commit import CommitCoordinator, DriverState, OpenTransaction
from headrace.pipeline.target import Target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = structlog.get_logger("headrace.pipeline.replay")

T = TypeVar("T")

# With a speed: how much of the traffic, in seconds as they pass now, is one round; and the time that a round gets to
# begin, before its first record is due.
SLICE_SECONDS = 30.0
HEAD_START = 1.0


@dataclass(frozen=True)
class Replayed:
    """How far a replay has come."""

    read: int
    """Records, in this run."""
    written: int
    rounds: int
    of: int
    """Rounds that there are; 0 where a speed decides."""
    left: int
    """Offsets that are not read yet."""
    application: str
    """The name under which it can be gone on with."""
    behind: float = 0.0
    """With a speed: how late a record left at worst, in seconds."""


Progress = Callable[[Replayed], None]


def replay(
    spark: SparkSession,
    *,
    topics: Sequence[str] = (),
    pattern: str = "",
    bootstrap: str = "",
    data: str = "",
    options: Mapping[str, str] | None = None,
    since: int | None = None,
    until: int | None = None,
    since_offset: int | None = None,
    until_offset: int | None = None,
    function: str | Callable[..., Any] | None = None,
    per: str = functions.FRAME,
    into: str = "",
    into_bootstrap: str = "",
    to: str | Path = "",
    speed: float = 0,
    keep_timestamps: bool = False,
    keep_partitions: bool = True,
    application: str = "",
    round_rows: int = ROUND_ROWS,
    dry_run: bool = False,
    progress: Progress | None = None,
    stop: Event | None = None,
) -> Replayed:
    """Replay records of topics, from a broker (`bootstrap`) or from a data folder or an archive (`data`).

    `since` and `until` are times in milliseconds, `since_offset` and `until_offset` offsets of all partitions; each
    partition's own are `startingOffsets` and `endingOffsets` of the `options`. `function`, or `"module:name"`, is of
    the shape that `per` names (`functions.py`). Records go into the topic `into`, made if it is missing, or become
    Parquet files in the folder `to`. `speed` is a multiple of the original timing, 0 as fast as possible. `dry_run`
    reads, and writes nothing.
    """
    log_like_a_library()
    times = {
        **({"startingTimestamp": str(since)} if since is not None else {}),
        **({"endingTimestamp": str(until)} if until is not None else {}),
    }
    source = rounds.source_of(topics, pattern, bootstrap, data, {**(options or {}), **times, "includeHeaders": "true"})
    if since_offset is not None:
        source = replace(source, start=Position(since_offset))
    if until_offset is not None:
        source = replace(source, end=Position(until_offset))
    called, folder = check_replay(function, per, into, to, speed, dry_run=dry_run)
    refuse_group(options)
    if not functions.is_plan(called, per):
        rounds.refuse_shape(options)
    name = application or f"replay-{uuid4().hex[:12]}"
    broker = into_bootstrap or bootstrap
    same = rounds.connection_of_writer(options, bootstrap, broker)
    sink = _sink(into, broker, name, same) if into and not dry_run else None
    shape = Shape(keep_timestamps, keep_partitions)
    # Where topics are, for a frame that is read: which of them, and from where to where, is in the plan.
    place = {"kafka.bootstrap.servers": bootstrap} if bootstrap else {"path": data}
    reading = {
        # A function that names its columns names the headers, too, if it wants them.
        **({} if any(name.lower() == "columns" for name in options or {}) else {"includeHeaders": "true"}),
        **{name: value for name, value in (options or {}).items() if name.lower() not in rounds.TOPICS + rounds.RANGE},
        **place,
    }
    runner = Runner(spark, source, reading, called, per, table=bool(to))
    job = Replay(source, runner, name, progress or (lambda _: None), stop or Event())
    plan = rounds.ask(source, lambda origin: plan_of(origin, source, round_rows))
    if sink is not None and sink.bootstrap == source.bootstrap and any(each.topic == into for each in plan.ranges):
        raise InvalidOption(f"{into} is read and would be written: replay into another topic")
    if dry_run:
        return job.everything(plan, CountOnly())
    if sink is None:
        assert folder is not None
        return job.into_table(plan, folder)
    fits = _make_topic(sink, plan, rounds.ask(source, lambda origin: _widest(origin, source)))
    shape = replace(shape, partitions=keep_partitions and fits)
    if speed:
        return job.paced(plan, AtOnce(sink, shape), speed)
    return job.into_topic(plan, sink, IntoTransaction(sink, shape))


def refuse_group(options: Mapping[str, str] | None) -> None:
    """Raises InvalidOption where a consumer group is to follow a replay."""
    if any(name.lower() == "kafka.group.id" for name in options or {}):
        raise InvalidOption("kafka.group.id is for readers that commit: a replay moves no consumer group")


def check_replay(
    function: str | Callable[..., Any] | None, per: str, into: str, to: str | Path, speed: float, *, dry_run: bool
) -> tuple[Callable[..., Any] | None, Path | None]:
    """The function, and the folder that is written. Raises where there is none of the name, where things do not go
    together, or where nothing could be written; changes nothing."""
    called = functions.load_function(function) if isinstance(function, str) else function
    if per not in functions.PER:
        raise InvalidOption(f"per must be one of {', '.join(functions.PER)} (got {per!r})")
    if bool(into) == bool(str(to)) and not dry_run:
        given = "both" if into else "none"
        raise InvalidOption(f"into (a topic) or to (a folder) says where records go. Give one of them (got {given}).")
    if speed < 0:
        raise InvalidOption(f"the speed cannot be {speed}: it is a multiple of the original timing, or 0 for none")
    if speed and to:
        raise InvalidOption("a speed is for a topic: no reader waits for the rows of a table")
    if speed and functions.is_plan(called, per):
        raise InvalidOption("a speed needs a function per batches, pandas or rows: a frame is read as a whole")
    if into:
        rounds.check_topic(into)
    return called, target(to, REPLAY) if str(to) else None


class Replay:
    """One replay under way."""

    def __init__(
        self, source: SourceOptions, runner: Runner, application: str, progress: Progress, stop: Event
    ) -> None:
        self._source = source
        self._runner = runner
        self._progress = progress
        self._stop = stop
        self._done = Replayed(0, 0, 0, 0, 0, application)

    def everything(self, plan: Plan, deliver: Deliver) -> Replayed:
        """All rounds, with nothing to decide about."""
        for number in range(plan.rounds):
            if self._stop.is_set():
                break
            self._account(plan, number, self._runner.run(plan.round(number), deliver))
        return self._done

    def into_topic(self, plan: Plan, sink: SinkOptions, deliver: Deliver) -> Replayed:
        """Round after round into a topic, each exactly once, from the one behind the last that was decided on."""
        note = _decisions(sink, lambda decisions: decisions.prepare()).note
        begin = 0
        if note is not None:
            plan, begin = self._resume(plan, note.query), note.batch + 1
            log.info("the replay goes on", application=sink.application, round=begin, of=plan.rounds)
        for number in range(begin, plan.rounds):
            if self._stop.is_set():
                break
            standing: DriverState = _decisions(sink, lambda decisions: decisions.prepare())
            answers = self._runner.run(plan.round(number), deliver)
            opened = [each.opened for each in answers if each.opened is not None]
            _decisions(sink, _decide(standing, plan.dump(), number, opened))
            self._account(plan, number, answers)
        return self._done

    def _resume(self, wanted: Plan, noted: str) -> Plan:
        plan = Plan.load(noted)
        before, now = ({(each.topic, each.partition) for each in some.ranges} for some in (plan, wanted))
        if not now <= before and not before <= now:
            raise InvalidOption(
                f"{self._done.application} has replayed something else ({sorted(before)[0][0]} ...): "
                "give another application to begin anew"
            )
        return plan

    def into_table(self, plan: Plan, root: Path) -> Replayed:
        """Round after round into a folder, each by one commit, from the one behind the last."""
        with hold_lock(root):
            check_folder(root, REPLAY)
            table = ParquetFolder(Target(str(root)))
            table.recover()
            if (root / PLAN).exists():
                plan = self._resume(plan, (root / PLAN).read_text())
            else:
                temporary = root / f"{PLAN}.tmp"
                temporary.write_text(plan.dump())
                os.replace(temporary, root / PLAN)
            last = newest(root)
            for number in range(last.number if last is not None else 0, plan.rounds):
                if self._stop.is_set():
                    break
                taken = plan.round(number)
                answers = self._runner.run(taken, IntoFile(str(root / table.staging(REPLAY, number))))
                spans = {(each.topic, each.partition): (each.start, each.end) for each in taken}
                tables.commit(table, REPLAY, number, [file for each in answers for file in each.files], spans)
                self._account(plan, number, answers)
        return self._done

    def paced(self, plan: Plan, deliver: Deliver, speed: float) -> Replayed:
        """Slice after slice of the traffic, each record when it is due."""
        done = {(each.topic, each.partition): each.start for each in plan.ranges}
        ends = {(each.topic, each.partition): each.end for each in plan.ranges}
        first = self._first_time(done, ends)
        if first is None:
            return self._done
        # The first tasks of a Spark take seconds to begin. Time should not run meanwhile.
        self._runner.warm(deliver)
        pace = Pace(first, time.time() + HEAD_START, speed)
        while first is not None and not self._stop.is_set():
            # Where nothing happened for long, nothing happens now either.
            if self._stop.wait(max(0.0, float(pace.due(first)) - HEAD_START - time.time())):
                break
            until = pace.reaches(max(time.time(), float(pace.due(first))) + SLICE_SECONDS)
            upto = self._find_reached(plan, done, until)
            ranges = [Range(*each, start, upto[each]) for each, start in done.items() if upto[each] > start]
            answers = self._runner.run_paced(ranges, deliver, pace) if ranges else []
            done = upto
            self._account(plan, None, answers, left=sum(ends[each] - offset for each, offset in done.items()))
            first = self._first_time(done, ends)
        return self._done

    def _find_reached(self, plan: Plan, done: Mapping[Partition, int], until: int) -> dict[Partition, int]:
        return rounds.ask(self._source, lambda origin: find_reached(origin, self._source, plan, done, until))

    def _first_time(self, done: Mapping[Partition, int], ends: Mapping[Partition, int]) -> int | None:
        """The oldest of the next records' times; None where there are none left."""
        found = []
        for each, offset in done.items():
            if offset < ends[each]:
                with closing(read_in_order(self._source, Range(*each, offset, ends[each]))) as blocks:
                    block = next(blocks, None)
                if block is not None:
                    found.append(block.column("timestamp").cast(pa.int64())[0].as_py() // 1000)
        return min(found, default=None)

    def _account(self, plan: Plan, number: int | None, answers: Sequence[Answer], left: int | None = None) -> None:
        before = self._done
        if left is None:
            assert number is not None
            left = sum(each.end - each.start for step in range(number + 1, plan.rounds) for each in plan.round(step))
        self._done = Replayed(
            before.read + sum(each.read for each in answers),
            before.written + sum(each.written for each in answers),
            before.rounds + 1,
            plan.rounds if number is not None else 0,
            left,
            before.application,
            max([before.behind, *(each.behind for each in answers)]),
        )
        self._progress(self._done)


def _sink(topic: str, bootstrap: str, application: str, connection: Mapping[str, str]) -> SinkOptions:
    if not bootstrap:
        raise InvalidOption(f"records are to go to the topic {topic}, and no broker is named: give into_bootstrap")
    given = {"kafka.bootstrap.servers": bootstrap, "topic": topic, "applicationId": application, **connection}
    return parse_sink(given, streaming=True)


async def _widest(origin: Catalogue, source: SourceOptions) -> int:
    """How many partitions there are of the topic that has most, those included that have nothing to be read."""
    everything = await origin.topics()
    return max((everything[topic] for topic, _ in await read_plan.find_partitions(origin, source)), default=1)


def _make_topic(sink: SinkOptions, plan: Plan, partitions: int) -> bool:
    """Make the topic if it is missing; whether each record can have its own partition there."""
    count = max((each.partition + 1 for each in plan.ranges), default=1)

    async def ask() -> bool:
        async with make_client(sink) as client:
            known = {topic.name: len(topic.partitions) for topic in await client.cluster.topics()}
            if sink.topic not in known:
                await client.admin.create_topic(sink.topic, partitions)
                return True
            return known[sink.topic] >= count

    return asyncio.run(ask())


def _decide(
    standing: DriverState, plan: str, number: int, opened: Sequence[OpenTransaction]
) -> Callable[[CommitCoordinator], Awaitable[None]]:
    return lambda decisions: decisions.commit(standing, plan, number, opened)


def _decisions(sink: SinkOptions, what: Callable[[CommitCoordinator], Awaitable[T]]) -> T:
    async def asking() -> T:
        async with make_client(sink) as client:
            return await what(CommitCoordinator(client, sink.application, fail_on_data_loss=sink.fail_on_data_loss))

    return asyncio.run(asking())
