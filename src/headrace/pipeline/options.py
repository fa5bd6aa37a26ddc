"""The options of source and sink, by the names that Spark's own have, so that code ports by changing one word.

What is Headrace's own: `startingGroup` (begin where a consumer group stands), `bytesPerPartition` (finer Spark
partitions by size), `path` (a folder without a broker), `columns` (some of them and no others), `pushFilters` (they
reach the log), `valueFormat` and what belongs to it, and `isolation`, which is `read_committed` where Spark's source
reads everything. A name that is not known is refused: it is likely a slip, and a source that ignores an option answers
another question than was asked. What only tunes the client that Spark's own source and sink have inside is taken, and
means nothing here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.format.compression import NAMES
from headrace.pipeline.connection_options import KNOWN as CONNECTION
from headrace.pipeline.connection_options import ConnectionOptions, parse_connection, refuse_secret
from headrace.pipeline.option_values import (
    INT64_MAX,
    InvalidOption,
    read_json,
    read_number,
    read_path,
    read_seconds,
    read_truth,
    read_word,
)
from headrace.targets import is_remote

Partition = tuple[str, int]

# As Kafka asks for offsets.
EARLIEST, LATEST = -2, -1

KNOWN = (
    "path", "subscribe", "subscribePattern", "assign", "startingOffsets", "endingOffsets",
    "startingTimestamp", "endingTimestamp", "startingOffsetsByTimestamp", "endingOffsetsByTimestamp", "startingGroup",
    "startingOffsetsByTimestampStrategy", "failOnDataLoss", "minPartitions", "maxRecordsPerPartition",
    "bytesPerPartition", "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay",
    "includeHeaders", "pushFilters", "isolation", "kafka.isolation.level", "kafka.group.id", "columns", "valueFormat",
    "schema", "valueColumns", "badRows", "columnNameOfCorruptRecord", "exactTimes", *CONNECTION,
)  # fmt: skip

KNOWN_BY_SINK = (
    "topic", "applicationId", "transactionTimeout", "failOnDataLoss", "includeHeaders", "kafka.compression.type",
    "checkpointLocation", "queryName", *CONNECTION,
)  # fmt: skip

KNOWN_BY_TABLE_SINK = (
    "path",
    "table",
    "partitionBy",
    "fileSize",
    "catalog",
    "tableName",
    "checkpointLocation",
    "queryName",
)
# Options of the table sink that are those of the storage begin so.
STORAGE = "storage."

# How the Java client goes about it, and not what is read or written.
TUNING = (
    "kafka.connections.max.idle.ms", "kafka.metadata.max.age.ms", "kafka.receive.buffer.bytes",
    "kafka.reconnect.backoff.max.ms", "kafka.reconnect.backoff.ms", "kafka.request.timeout.ms",
    "kafka.retry.backoff.max.ms", "kafka.retry.backoff.ms", "kafka.send.buffer.bytes",
    "kafka.socket.connection.setup.timeout.max.ms", "kafka.socket.connection.setup.timeout.ms",
)  # fmt: skip
TUNING_OF_SOURCE = (
    *TUNING, "groupIdPrefix", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs", "kafkaConsumer.pollTimeoutMs",
    "kafka.check.crcs", "kafka.client.rack", "kafka.default.api.timeout.ms", "kafka.fetch.max.bytes",
    "kafka.fetch.max.wait.ms", "kafka.fetch.min.bytes", "kafka.heartbeat.interval.ms",
    "kafka.max.partition.fetch.bytes", "kafka.max.poll.interval.ms", "kafka.max.poll.records",
    "kafka.session.timeout.ms",
)  # fmt: skip
TUNING_OF_SINK = (
    *TUNING, "kafka.acks", "kafka.batch.size", "kafka.buffer.memory", "kafka.delivery.timeout.ms",
    "kafka.enable.idempotence", "kafka.linger.ms", "kafka.max.block.ms",
    "kafka.max.in.flight.requests.per.connection", "kafka.max.request.size", "kafka.retries",
)  # fmt: skip

RECORD_NAMES = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
HEADERS = "headers"

# A comma with whole pairs of backticks behind it.
BETWEEN_NAMES = re.compile(r",(?=(?:[^`]*`[^`]*`)*[^`]*$)")
QUOTED = re.compile(r"`(?:[^`]|``)+`")

# What a folder alone cannot do.
FOR_BROKERS = ("startingGroup", "kafka.group.id")


@dataclass(frozen=True)
class Position:
    """Where to begin or to end: everywhere the same, or by partition; by offset, by time, or where a group stands."""

    everywhere: int = EARLIEST
    by_partition: Mapping[Partition, int] = field(default_factory=dict)
    time: int | None = None
    """Milliseconds; where given, `everywhere` is what counts where no record is that young."""
    time_by_partition: Mapping[Partition, int] = field(default_factory=dict)
    strict: bool = False
    """Where no record is as young as a time, that is an error, and not the end."""
    group: str = ""


@dataclass(frozen=True)
class ValueOptions:
    """Which columns there are, and how values become some."""

    columns: tuple[str, ...]
    """The only ones that are wanted; empty for all of them."""
    json: bool
    """Values are decoded; they stay bytes otherwise."""
    schema: str
    """As DDL or as Spark's JSON; empty where Spark is given the columns."""
    nested: bool
    """They are fields of one column `value`."""
    bad_rows: str
    """`column`, `drop` or `fail`."""
    bad_column: str


@dataclass(frozen=True)
class ColumnSelection:
    """Columns of a record, in the order in which Spark wants them."""

    names: tuple[str, ...]
    texts: frozenset[str] = frozenset()
    """Those of bytes that are taken for text."""

    @classmethod
    def all(cls, headers: bool) -> ColumnSelection:
        return cls((*RECORD_NAMES, HEADERS) if headers else RECORD_NAMES)


@dataclass(frozen=True)
class SourceOptions(ConnectionOptions):
    """The options of one read."""

    folder: str
    """A broker's data folder, read without a broker."""
    topics: tuple[str, ...]
    pattern: str
    partitions: Mapping[str, tuple[int, ...]]
    """By topic, where single partitions were asked for."""
    start: Position
    end: Position
    fail_on_data_loss: bool
    min_partitions: int
    records_per_partition: int
    bytes_per_partition: int
    offsets_per_trigger: int
    least_per_trigger: int
    """Offsets that a batch of a stream waits for."""
    trigger_delay: float
    """Seconds that it waits at most."""
    headers: bool
    exact_times: bool
    """Times stay as they are, also those that no date has."""
    push_filters: bool
    """Filters may narrow what is read: a promise that no other query is made of what is loaded."""
    committed: bool
    group: str


@dataclass(frozen=True)
class SinkOptions(ConnectionOptions):
    """The options of one write."""

    topic: str
    """Where every row goes; empty where each row names its topic."""
    application: str
    """The name under which a stream is known over restarts; empty for a write of its own."""
    transaction_timeout: int
    fail_on_data_loss: bool
    compression: str


def parse_sink(given: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """The sink's options; their names' case does not count. Raises InvalidOption."""
    options = _named(given, KNOWN_BY_SINK, TUNING_OF_SINK, "sink")
    if not options.get("kafka.bootstrap.servers"):
        raise InvalidOption(
            "kafka.bootstrap.servers is missing. Give the broker to write to: HOST:PORT, several with commas."
        )
    application = options.get("applicationId", "")
    if streaming and not application:
        raise InvalidOption(
            "applicationId is missing: a stream is written exactly once under a name that stays the same over "
            "restarts, and is another one for each checkpoint"
        )
    return SinkOptions(
        **parse_connection(options),
        topic=options.get("topic", ""),
        application=application,
        transaction_timeout=read_number(options, "transactionTimeout", 900, least=1),
        fail_on_data_loss=read_truth(options, "failOnDataLoss", True),
        compression=read_word(options, "kafka.compression.type", tuple(NAMES)),
    )


@dataclass(frozen=True)
class TableOptions:
    """What the options of one write to a table say."""

    path: str
    table: str
    partition_by: tuple[str, ...]
    file_bytes: int
    catalog: str
    """The name of an Iceberg catalogue in pyiceberg's configuration; empty for one beside the table."""
    name: str
    """The table's name in its catalogue."""
    storage: Mapping[str, str]


def parse_table_sink(given: Mapping[str, str]) -> TableOptions:
    """The table sink's options; their names' case does not count. Raises InvalidOption."""
    storage = {name[len(STORAGE) :]: value for name, value in given.items() if name.lower().startswith(STORAGE)}
    others = {name: value for name, value in given.items() if not name.lower().startswith(STORAGE)}
    options = _named(others, KNOWN_BY_TABLE_SINK, (), "table sink")
    table = read_word(options, "table", ("parquet", "delta", "iceberg"))
    for name in ("catalog", "tableName"):
        if table != "iceberg" and options.get(name):
            raise InvalidOption(f"{name} is for tables in a catalogue: give table=iceberg, too")
    return TableOptions(
        path=options["path"],
        table=table,
        partition_by=tuple(each.strip() for each in options.get("partitionBy", "").split(",") if each.strip()),
        file_bytes=read_number(options, "fileSize", 128 << 20, least=1),
        catalog=options.get("catalog", ""),
        name=options.get("tableName", ""),
        storage=storage,
    )


def parse(given: Mapping[str, str], *, streaming: bool, bounded: bool = False) -> SourceOptions:
    """The options as Spark hands them over; their names' case does not count. A stream that is `bounded` may have an
    end, if its query takes what is available now. Raises InvalidOption."""
    options = _named(given)
    bootstrap, folder = options.get("kafka.bootstrap.servers", ""), options.get("path", "")
    # A broker's data folder is one of this machine; an archive may be elsewhere.
    if folder and not is_remote(folder):
        folder = read_path(options, "path")
    if bool(bootstrap) == bool(folder):
        raise InvalidOption(
            "kafka.bootstrap.servers (HOST:PORT of a broker, several with commas) or path (the data folder of a broker "
            f"that does not run) says where the topics are: give one of them, not {'both' if folder else 'none'}"
        )
    for name in FOR_BROKERS if folder else ():
        if name in options:
            raise InvalidOption(f"{name} needs a broker: the folder {folder} is read without one")
    ways = [name for name in ("subscribe", "subscribePattern", "assign") if options.get(name)]
    if len(ways) != 1:
        raise InvalidOption(f"subscribe, subscribePattern or assign says what is read: give one, not {ways or 'none'}")
    assigned = _assigned(options["assign"]) if "assign" in ways else {}
    topics = tuple(part.strip() for part in options.get("subscribe", "").split(",") if part.strip())
    isolation = options.get("isolation", options.get("kafka.isolation.level", "read_committed"))
    if isolation not in ("read_committed", "read_uncommitted"):
        raise InvalidOption(f"isolation cannot be {isolation!r}: it is read_committed or read_uncommitted")
    if streaming and not bounded:
        for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
            if name in options:
                raise InvalidOption(f"{name} is for batch reads: a stream has no end")
    most, least = read_number(options, "maxOffsetsPerTrigger"), read_number(options, "minOffsetsPerTrigger")
    if most and least > most:
        raise InvalidOption(f"minOffsetsPerTrigger cannot be {least}: maxOffsetsPerTrigger is {most}")
    return SourceOptions(
        **parse_connection(options),
        folder=folder,
        topics=topics or tuple(assigned),
        pattern=_pattern(options.get("subscribePattern", "")),
        partitions=assigned,
        start=_position(options, "starting", LATEST if streaming else EARLIEST),
        end=_position(options, "ending", LATEST),
        fail_on_data_loss=read_truth(options, "failOnDataLoss", True),
        min_partitions=read_number(options, "minPartitions"),
        records_per_partition=read_number(options, "maxRecordsPerPartition"),
        bytes_per_partition=read_number(options, "bytesPerPartition"),
        offsets_per_trigger=most,
        least_per_trigger=least,
        trigger_delay=read_seconds(options, "maxTriggerDelay", 900),
        headers=read_truth(options, "includeHeaders", False),
        exact_times=read_truth(options, "exactTimes", False),
        push_filters=read_truth(options, "pushFilters", False),
        committed=isolation == "read_committed",
        group=options.get("kafka.group.id", ""),
    )


def parse_values(given: Mapping[str, str]) -> ValueOptions:
    """The part of the options that names the columns. Raises InvalidOption."""
    options = _named(given)
    columns = _columns(options)
    schema = options.get("schema", "").strip()
    nested = read_word(options, "valueColumns", ("flat", "struct"))
    bad_rows = read_word(options, "badRows", ("column", "drop", "fail"))
    if read_word(options, "valueFormat", ("binary", "json")) == "json":
        bad_column = options.get("columnNameOfCorruptRecord", "_corrupt_record")
        return ValueOptions(columns, True, schema, nested == "struct", bad_rows, bad_column)
    for name in ("schema", "valueColumns", "badRows", "columnNameOfCorruptRecord"):
        if name in options:
            raise InvalidOption(f"{name} is for values that are decoded: give valueFormat=json, too")
    return ValueOptions(columns, False, "", False, "column", "")


def _columns(options: Mapping[str, str]) -> tuple[str, ...]:
    """The names in `columns`; one with a comma in it stands in backticks, as in SQL."""
    text = options.get("columns")
    if text is None:
        return ()
    names = [part.strip() for part in BETWEEN_NAMES.split(text)]
    names = [part[1:-1].replace("``", "`") if QUOTED.fullmatch(part) else part for part in names]
    if not all(names):
        raise InvalidOption(f"columns cannot be {text!r}: it names columns, with commas between them: value,timestamp")
    lower = [name.lower() for name in names]
    twice = [name for number, name in enumerate(names) if name.lower() in lower[:number]]
    if twice:
        raise InvalidOption(f"columns cannot be {text!r}: {twice[0]!r} is there twice")
    return tuple(names)


def _named(
    given: Mapping[str, str],
    names: tuple[str, ...] = KNOWN,
    tuning: tuple[str, ...] = TUNING_OF_SOURCE,
    of: str = "source",
) -> dict[str, str]:
    """The options by their known names."""
    known = {name.lower(): name for name in (*names, *tuning)}
    options: dict[str, str] = {}
    for name, value in given.items():
        if name.lower() not in known:
            refuse_secret(name)
            from difflib import get_close_matches

            near = get_close_matches(name.lower(), known, 1, 0.8)
            guess = f" (did you mean {known[near[0]]}?)" if near else ""
            raise InvalidOption(f"the {of} has no option {name!r}{guess}: it has {', '.join(names)}")
        options[known[name.lower()]] = value
    return options


def _position(options: Mapping[str, str], which: str, default: int) -> Position:
    group = options.get("startingGroup", "") if which == "starting" else ""
    offsets = options.get(f"{which}Offsets")
    time = options.get(f"{which}Timestamp")
    times = options.get(f"{which}OffsetsByTimestamp")
    strict = (
        which == "starting" and read_word(options, "startingOffsetsByTimestampStrategy", ("latest", "error")) == "error"
    )
    # The more particular wins, as in Spark's own source: times by partition, then a time, then offsets.
    if times is not None:
        by_partition = _by_partition(f"{which}OffsetsByTimestamp", times)
        return Position(LATEST, time_by_partition=by_partition, strict=strict, group=group)
    if time is not None:
        return Position(LATEST, time=read_number(options, f"{which}Timestamp"), strict=strict, group=group)
    if offsets is None:
        return Position(default, group=group)
    if offsets.lower() in ("earliest", "latest"):
        if which == "ending" and offsets.lower() == "earliest":
            raise InvalidOption("endingOffsets cannot be earliest: nothing would be read")
        return Position(EARLIEST if offsets.lower() == "earliest" else LATEST, group=group)
    return Position(default, _by_partition(f"{which}Offsets", offsets, least=EARLIEST), group=group)


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise InvalidOption(f"{text!r} is not a regular expression: {error}") from None
    return text


def _by_partition(name: str, text: str, *, least: int = 0) -> dict[Partition, int]:
    found: dict[Partition, int] = {}
    parsed = read_json(name, text)
    try:
        for topic, partitions in parsed.items():
            for partition, value in partitions.items():
                found[str(topic), int(partition)] = int(value)
                if int(partition) < 0 or not least <= int(value) <= INT64_MAX:
                    raise ValueError
    except (AttributeError, TypeError, ValueError):
        raise InvalidOption(
            f'{name} cannot be {text!r}: it is JSON like {{"topic": {{"0": 23, "1": -2}}}}, or (offsets) a word'
        ) from None
    return found


def _assigned(text: str) -> dict[str, tuple[int, ...]]:
    parsed = read_json("assign", text)
    try:
        found = {str(topic): tuple(sorted({int(each) for each in partitions})) for topic, partitions in parsed.items()}
        if not found or not all(found.values()) or any(each[0] < 0 for each in found.values()):
            raise ValueError
        return found
    except (AttributeError, TypeError, ValueError):
        raise InvalidOption(f'assign cannot be {text!r}: it is JSON like {{"topic": [0, 1]}}') from None
