"""`lake`: a table for every topic with the setting `lake`, kept within the topic's freshness, each record once.

One job follows all of them. It asks the broker which topics there are and where they end, and where a topic has news,
it runs a streaming query over what is available now, of this topic alone, with a checkpoint of its own. So a topic
without news costs a line in a request, one whose table cannot be written holds up no other, and memory does not grow
with the number of topics. A run takes 1.6 s of CPU. (A query that lasts keeps a process of Python, 78 MB, for each
topic, whether it has news or not; one query for all topics would have all wait for the slowest table, and be restarted
for each change of a setting.) What a batch does is in `lake_batch.py`.

The consumer group `lake-TOPIC` follows the table, and the broker's retention waits for it.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import structlog

from headrace.client.errors import ClientError
from headrace.errors import HeadraceError
from headrace.lake import group_of, parse_place
from headrace.logs import log_like_a_library
from headrace.pipeline.broker import make_client
from headrace.pipeline.jobs import queries, rounds
from headrace.pipeline.jobs.folders import CHECKPOINT
from headrace.pipeline.lake_batch import FILE_BYTES, READ, LakeTable
from headrace.pipeline.lake_columns import declared_kind
from headrace.pipeline.manifest import check_root, check_writable, hold_lock
from headrace.pipeline.option_values import InvalidOption
from headrace.pipeline.options import EARLIEST, LATEST, Partition, parse
from headrace.pipeline.session import active_session, sibling_session
from headrace.pipeline.tables import State, maker_of
from headrace.pipeline.target import Target
from headrace.targets import is_remote, local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from headrace.client import Client

log = structlog.get_logger("headrace.pipeline.lake")

PLACE, FRESHNESS, SCHEMA = SETTINGS = ("lake", "lake.freshness.ms", "lake.schema")
# How often the job looks for topics that are there, gone, or configured otherwise, and how often for what is due.
DISCOVER_SECONDS = 5.0
PAUSE_SECONDS = 0.25
# Topics whose queries run at once.
QUERIES = 4
# A topic without news is run now and then all the same: the offsets of its group must not expire.
REFRESH_SECONDS = 3_600.0
# A topic whose table could not be written is tried again after this long.
RETRY_SECONDS = 10.0
# Offsets of one batch, so that a long way is committed step by step.
BATCH_OFFSETS = 1_000_000


@dataclass(frozen=True)
class TableStatus:
    """How far the table of a topic is."""

    table: str
    rows: int = 0
    """Rows, files and bytes since the table was begun."""
    files: int = 0
    bytes: int = 0
    misfits: int = 0
    """Rows whose value fits no columns, and is in `_value`."""
    lost: int = 0
    """Offsets that were gone from the log before this run of the job could have them."""
    lag: int = 0
    """Offsets that were there and not in the table when last looked at."""
    stale_seconds: float = 0.0
    """The table has all that is older than this."""
    error: str = ""
    """Why the table cannot be written; it is tried again."""


Lake = dict[str, TableStatus]
"""The tables, by topic."""
Progress = Callable[[Lake], None]


@dataclass(frozen=True)
class LakeSettings:
    """What is the same for all topics."""

    bootstrap: str
    checkpoints: str = ""
    """The folder, or Hadoop's URL, of the checkpoints; empty where they lie beside the tables."""
    catalog: str = ""
    storage: Mapping[str, str] = field(default_factory=dict)
    pattern: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    file_bytes: int = FILE_BYTES

    @property
    def connection(self) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self.bootstrap, **self.options}


def lake(
    spark: SparkSession,
    *,
    bootstrap: str,
    checkpoints: str | Path = "",
    catalog: str = "",
    storage: Mapping[str, str] | None = None,
    pattern: str = "",
    once: bool = False,
    file_bytes: int = FILE_BYTES,
    options: Mapping[str, str] | None = None,
    progress: Progress | None = None,
    stop: Event | None = None,
) -> Lake:
    """Keep the tables of all topics with the setting `lake` up to date until `stop` is set; `once`, until they have
    what is there now.

    Only topics whose names match the `pattern` are followed, if there is one. Checkpoints lie beside the tables, or
    under the folder `checkpoints`, which tables at a URL need. `catalog` and `storage` are as of `archive`, for all
    tables. `options` are further options of the source: `timeout`, `isolation`, `kafka.ssl...`.
    """
    log_like_a_library()
    settings = check(
        LakeSettings(bootstrap, str(checkpoints), catalog, storage or {}, pattern, options or {}, file_bytes)
    )
    job = _Job(sibling_session(spark), settings, once, progress or (lambda _: None), stop or Event())
    return asyncio.run(job.run())


def check(settings: LakeSettings) -> LakeSettings:
    """The settings with absolute paths. Raises where they make no sense; changes nothing."""
    rounds.refuse_shape(settings.options)
    parse({**settings.connection, "subscribePattern": settings.pattern or ".*"}, streaming=True)
    if settings.checkpoints and "://" not in settings.checkpoints:
        folder = Path(local_path(settings.checkpoints, "checkpoints")).absolute()
        check_writable(folder)
        return replace(settings, checkpoints=str(folder))
    return settings


@dataclass
class _Follower:
    """A topic, its table and how far it is."""

    table: LakeTable
    partitions: int
    settings: Mapping[str, str]
    """As the topic has them."""
    freshness: float
    status: TableStatus
    checkpoint: str = ""
    position: dict[Partition, int] | None = None
    """Up to where the table has the topic; unknown before the first run."""
    looked: float = float("-inf")
    """When the topic was last looked at, run, and had nothing that the table had not, by the monotonic clock."""
    ran: float = float("-inf")
    fresh: float = field(default_factory=time.monotonic)
    running: asyncio.Future[Any] | None = None

    @property
    def is_due(self) -> bool:
        if self.running is not None:
            return False
        pause = max(self.freshness / 2, RETRY_SECONDS if self.status.error else 0.0)
        return time.monotonic() - self.looked >= pause


class _Job:
    def __init__(
        self, spark: SparkSession, settings: LakeSettings, once: bool, progress: Progress, stop: Event
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._once = once
        self._progress = progress
        self._stop = stop
        self._followers: dict[str, _Follower] = {}
        self._discovered = float("-inf")
        self._reported: dict[str, str] = {}
        """By topic, the error that was logged last."""

    @property
    def lake(self) -> Lake:
        now = time.monotonic()
        return {
            topic: replace(each.status, stale_seconds=round(now - each.fresh, 3))
            for topic, each in sorted(self._followers.items())
        }

    async def run(self) -> Lake:
        source = parse({**self._settings.connection, "subscribePattern": ".*"}, streaming=True)
        with ThreadPoolExecutor(QUERIES, "lake") as pool:
            try:
                while not self._stop.is_set():
                    try:
                        async with make_client(source) as client:
                            await self._follow(client, pool)
                            break
                    except ClientError as error:
                        if self._once:
                            raise
                        log.warning("the broker is away: the job begins again", error=str(error))
                        self._discovered = float("-inf")
                        await asyncio.to_thread(self._stop.wait, rounds.AWAY_SECONDS)
            finally:
                # Queries stop where they are; what is unfinished is for the next run.
                self._stop.set()
                await asyncio.gather(
                    *(each.running for each in self._followers.values() if each.running), return_exceptions=True
                )
        return self.lake

    async def _follow(self, client: Client, pool: ThreadPoolExecutor) -> None:
        while not self._stop.is_set():
            if time.monotonic() - self._discovered >= DISCOVER_SECONDS:
                await self._discover(client)
                self._discovered = time.monotonic()
            await self._look(client, pool)
            self._progress(self.lake)
            if self._once and all(each.position is not None or each.status.error for each in self._followers.values()):
                return
            await asyncio.to_thread(self._stop.wait, PAUSE_SECONDS)

    async def _discover(self, client: Client) -> None:
        """Take up topics that have the setting, and let go those that have not."""
        wanted = re.compile(self._settings.pattern) if self._settings.pattern else None
        topics = {
            each.name: each
            for each in await client.cluster.topics()
            if not each.internal and (wanted is None or wanted.fullmatch(each.name))
        }
        found = {
            topic: given
            for topic, given in (await client.admin.topic_settings(list(topics), SETTINGS)).items()
            if given.get(PLACE)
        }
        for topic, follower in list(self._followers.items()):
            state = topics.get(topic)
            same = state is not None and str(state.id) == follower.table.topic_id
            # Where the table could not even be looked at, that is tried again.
            stays = same and found.get(topic) == follower.settings and follower.checkpoint
            if follower.running is None and not stays:
                del self._followers[topic]
        for topic, given in found.items():
            if topic not in self._followers:
                self._followers[topic] = self._begin(topic, str(topics[topic].id), given)
            self._followers[topic].partitions = len(topics[topic].partitions)

    def _begin(self, topic: str, id: str, given: Mapping[str, str]) -> _Follower:
        status = TableStatus(given[PLACE])
        try:
            table, checkpoint = self._table_of(topic, id, given)
        except HeadraceError as error:
            status = replace(status, error=self._report(topic, error))
            table, checkpoint = LakeTable(topic, id, "", Target("")), ""
        return _Follower(table, 0, given, int(given[FRESHNESS]) / 1000, status, checkpoint)

    def _table_of(self, topic: str, id: str, given: Mapping[str, str]) -> tuple[LakeTable, str]:
        """The table, and its checkpoint. Raises HeadraceError where it cannot be written."""
        settings = self._settings
        kind, place = parse_place(given[PLACE])
        maker_of(kind)
        target = Target.of(place, PLACE, settings.storage)
        declared = declared_kind(given[SCHEMA]) if given[SCHEMA] else None
        table = LakeTable(topic, id, kind, target, settings.catalog, declared, settings.file_bytes)
        for other in self._followers.values():
            if other.table.target == target:
                raise InvalidOption(f"{given[PLACE]} is the table of {other.table.topic}, too. Set another place.")
        if target.local is not None:
            check_root(target.local)
        table.open()
        if settings.checkpoints:
            # Another place is another table, with offsets of its own.
            mark = sha256(f"{id} {given[PLACE]}".encode()).hexdigest()[:12]
            return table, f"{settings.checkpoints}/{topic}-{mark}"
        if is_remote(place):
            raise InvalidOption(f"a table at {place} needs a folder for its checkpoint (--checkpoints)")
        return table, f"{target.url}/{CHECKPOINT}"

    async def _look(self, client: Client, pool: ThreadPoolExecutor) -> None:
        """Run the topics that are due and have news."""
        due = [each for each in self._followers.values() if each.is_due and each.checkpoint]
        if not due:
            return
        now = time.monotonic()
        partitions = [(each.table.topic, index) for each in due for index in range(each.partitions)]
        first = {each: found.offset for each, found in (await _offsets(client, partitions, EARLIEST)).items()}
        ends = {each: found.offset for each, found in (await _offsets(client, partitions, LATEST)).items()}
        for each in due:
            each.looked = now
            mine = {place: end for place, end in ends.items() if place[0] == each.table.topic}
            lag = sum(max(0, end - (each.position or {}).get(place, first[place])) for place, end in mine.items())
            each.status = replace(each.status, lag=lag)
            if not lag and each.position is not None:
                each.fresh = now
                if now - each.ran < REFRESH_SECONDS:
                    continue
            each.running = asyncio.create_task(self._run(each, pool, now, first, mine))

    async def _run(
        self,
        follower: _Follower,
        pool: ThreadPoolExecutor,
        began: float,
        first: Mapping[Partition, int],
        ends: dict[Partition, int],
    ) -> None:
        run = TopicRun(self._spark, self._settings, follower.table, follower.checkpoint, first, self._stop)
        try:
            state = await asyncio.get_running_loop().run_in_executor(pool, run)
        except Exception as error:
            if not self._stop.is_set():
                follower.status = replace(follower.status, error=self._report(run.table.topic, error))
        else:
            if not self._stop.is_set():
                follower.position, follower.fresh, follower.ran = ends, began, time.monotonic()
            totals = {name: getattr(state, name) for name in ("rows", "files", "bytes", "misfits")}
            lost = follower.status.lost + run.lost
            follower.status = replace(follower.status, **totals, lost=lost, lag=0, error="")
            self._reported.pop(run.table.topic, None)
        finally:
            follower.running = None

    def _report(self, topic: str, error: Exception) -> str:
        """Log why a table cannot be written, unless that was logged; the reason."""
        reason = rounds.find_reason(error)
        if self._reported.get(topic) != reason:
            log.warning("the table cannot be written: it is tried again", topic=topic, error=reason)
            self._reported[topic] = reason
        return reason


class TopicRun:
    """A streaming query over what a topic has now, in a thread of its own."""

    def __init__(
        self,
        spark: SparkSession,
        settings: LakeSettings,
        table: LakeTable,
        checkpoint: str,
        first: Mapping[Partition, int],
        stop: Event,
    ) -> None:
        self.table = table
        self.lost = 0
        self._spark = spark
        self._settings = settings
        self._checkpoint = checkpoint
        self._first = first
        self._stop = stop

    def __call__(self) -> State:
        with hold_lock(self.table.target.local), active_session(self._spark):
            return self._run()

    def _run(self) -> State:
        begun = self.table.prepare()
        local = Path(self._checkpoint) if "://" not in self._checkpoint else None
        if local is not None and not begun.commits:
            # Of a table that is gone: this one is new, and begins at the beginning.
            shutil.rmtree(local, ignore_errors=True)
        done = {**begun.ends, **(queries.stands_at(local) if local is not None else {})}
        for each, end in sorted(done.items()):
            if each in self._first and self._first[each] > end:
                gone = self._first[each] - end
                self.lost += gone
                log.warning("records were gone before the table had them", partition=each, offsets=gone, since=end)
        queries.run(self._start(begun), lambda _: None, self._stop)
        return self.table.open().state()

    def _start(self, begun: State) -> StreamingQuery:
        topic = self.table.topic
        starts = {str(index): begun.ends.get((topic, index), EARLIEST) for name, index in self._first if name == topic}
        source = {
            "maxOffsetsPerTrigger": str(BATCH_OFFSETS),
            **self._settings.connection,
            "subscribe": topic,
            "includeHeaders": "true",
            "startingOffsets": json.dumps({topic: starts}),
            "kafka.group.id": group_of(topic),
            # What is gone is reported; that the topic was created again is known by its id.
            "failOnDataLoss": "false",
        }
        frame = self._spark.readStream.format("headrace").options(**source).schema(READ).load()
        writer = (
            frame.writeStream.queryName(f"lake {topic}")
            .foreachBatch(self.table)
            .option("checkpointLocation", self._checkpoint)
        )
        return queries.start(writer, None)


async def _offsets(client: Client, partitions: list[Partition], time: int) -> Mapping[Partition, Any]:
    return await client.admin.list_offsets(dict.fromkeys(partitions, time), committed=True)
