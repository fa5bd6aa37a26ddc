"""How the driver decides about the transactions of tasks, with tasks that run here instead of on Spark."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from tests.pipeline.topics import Topics, decided

pa = pytest.importorskip("pyarrow")

import headrace  # noqa: E402 -- needs pyarrow
from headrace.client import EARLIEST, Client  # noqa: E402
from headrace.client.transactional import TransactionalProducer  # noqa: E402
from headrace.pipeline import sink_commit  # noqa: E402
from headrace.pipeline.options import parse_sink  # noqa: E402
from headrace.pipeline.sink_commit import (  # noqa: E402
    CommitCoordinator,
    DriverState,
    OpenTransaction,
    RowsLost,
    SinkError,
    SinkReplaced,
)
from headrace.pipeline.sink_task import InvalidRows, check_schema, write_transaction  # noqa: E402

QUERY = "a-query"


@pytest.fixture(scope="module")
def topics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topics]:
    with headrace.Broker(data=str(tmp_path_factory.mktemp("data"))) as running:
        yield Topics(running.kafka)


class Stream:
    """A query that writes into one topic: batches of two tasks with rows, and one without."""

    def __init__(self, topics: Topics, application: str = "", **options: str) -> None:
        self.topics = topics
        self.topic = topics.create(2)
        self.application = application or f"{self.topic}-app"
        given = {"kafka.bootstrap.servers": topics.address, "topic": self.topic, "applicationId": self.application}
        self.options = parse_sink({**given, **options}, streaming=True)

    def decide(self, what: Callable[[CommitCoordinator], Any], **options: Any) -> Any:
        return self.topics.ask(lambda client: what(CommitCoordinator(client, self.application, **options)))

    def prepare(self, **options: Any) -> DriverState:
        found: DriverState = self.decide(lambda decisions: decisions.prepare(), **options)
        return found

    def tasks(self, batch: int, attempt: int = 0) -> list[OpenTransaction]:
        """Rows that come in another order, and in other tasks, each time."""
        rows = [b"%d" % (batch * 10 + number) for number in range(10)]
        cut = 4 + attempt
        parts = [rows[:cut], [], [*rows[:cut:-1], rows[cut]]]
        blocks = ([pa.record_batch({"value": pa.array(part, pa.binary())})] for part in parts)
        written = [
            write_transaction(self.options, f"{self.application}-{partition}-{attempt}", iter(block))
            for partition, block in enumerate(blocks)
        ]
        return [each for each in written if each is not None]

    def commit(self, standing: DriverState, batch: int, opened: Sequence[OpenTransaction], query: str = QUERY) -> None:
        self.decide(lambda decisions: decisions.commit(standing, query, batch, opened))

    def run(self, batch: int, attempt: int = 0) -> None:
        standing = self.prepare()
        self.commit(standing, batch, self.tasks(batch, attempt))

    def open(self) -> list[str]:
        listed = self.topics.ask(lambda client: client.transactions.list_all(states=["Ongoing"]))
        return [each.transactional_id for each in listed if each.transactional_id.startswith(self.application)]

    def values(self) -> list[int]:
        async def read(client: Client) -> list[int]:
            await decided(client)
            async with client.consumer(committed=True, max_wait=0.05) as consumer:
                await consumer.assign({(self.topic, 0): EARLIEST, (self.topic, 1): EARLIEST})
                found = [int(each.value or b"") async for each in consumer.records(await consumer.end_offsets())]
                return sorted(found)

        return self.topics.ask(read)


class Killed(BaseException):
    """The process is gone from here on."""


def crash_at(patching: pytest.MonkeyPatch, step: int) -> None:
    """Let the driver die at its `step`th change at the broker, before or after it. From then on it does nothing."""
    steps = itertools.count(1)
    dead = False

    def alive() -> None:
        nonlocal dead
        dead = dead or next(steps) == step
        if dead:
            raise Killed

    def dying(real: Callable[..., Any]) -> Callable[..., Any]:
        async def call(*arguments: Any, **named: Any) -> Any:
            alive()
            found = await real(*arguments, **named)
            alive()
            return found

        return call

    for owner, name in (
        (TransactionalProducer, "init"),
        (TransactionalProducer, "commit"),
        (TransactionalProducer, "abort"),
        (sink_commit, "sweep"),
    ):
        patching.setattr(owner, name, dying(getattr(owner, name)))


def test_a_driver_that_dies_anywhere_neither_loses_nor_repeats(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_commit, "AT_ONCE", 1)
    step, died = 0, True
    halves = 0
    while died:
        step += 1
        stream = Stream(topics)
        stream.run(0)
        standing = stream.prepare()
        opened = stream.tasks(1)
        with pytest.MonkeyPatch.context() as patching:
            crash_at(patching, step)
            try:
                stream.commit(standing, 1, opened)
                died = False
            except Killed:
                pass
        # Spark has not heard of the commit: the batch runs again, and here it dies once more, while it recovers.
        halves += bool(stream.open())
        with pytest.MonkeyPatch.context() as patching:
            crash_at(patching, step)
            try:
                stream.run(1, attempt=1)
            except Killed:
                pass
        stream.run(1)
        assert stream.values() == list(range(20)), step
        stream.run(2)
        assert stream.values() == list(range(30)), step
        assert not stream.open()
    assert step > 10
    assert halves > 5


def test_a_driver_that_was_replaced_decides_nothing(topics: Topics) -> None:
    stream = Stream(topics)
    old = stream.prepare()
    opened = stream.tasks(0)
    stream.run(0)
    with pytest.raises(SinkReplaced, match="another driver"):
        stream.commit(old, 0, opened)
    stream.decide(lambda decisions: decisions.abort(old, opened))
    stream.run(1)
    assert stream.values() == list(range(20))


def test_a_commit_that_fails_halfway_is_not_undone_by_the_abort_that_follows(topics: Topics) -> None:
    stream = Stream(topics)
    standing = stream.prepare()
    opened = stream.tasks(0)
    with pytest.MonkeyPatch.context() as patching:
        patching.setattr(sink_commit, "AT_ONCE", 1)
        crash_at(patching, 6)
        with pytest.raises(Killed):
            stream.commit(standing, 0, opened)
    assert 0 < len(stream.values()) < 10
    stream.decide(lambda decisions: decisions.abort(standing, opened))
    assert stream.prepare().note.batch == 0
    assert stream.values() == list(range(10))


def test_a_batch_that_fails_leaves_nothing_open(topics: Topics) -> None:
    stream = Stream(topics)
    standing = stream.prepare()
    opened = stream.tasks(0)
    # The slower of two attempts, of which Spark tells nobody; and another application's, whose name begins alike.
    slower = stream.tasks(0, attempt=1)
    other = Stream(topics, f"{stream.application}-1")
    others = other.tasks(0)
    stream.decide(lambda decisions: decisions.abort(standing, opened))
    assert stream.open() == [each.transactional_id for each in others]
    assert stream.values() == []
    assert slower
    other.commit(other.prepare(), 0, [])
    assert not other.open()


def test_a_task_that_fails_aborts(topics: Topics) -> None:
    stream = Stream(topics)

    def blocks() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"value": pa.array([b"1"])})
        raise RuntimeError("a row cannot be computed")

    with pytest.raises(RuntimeError, match="cannot be computed"):
        write_transaction(stream.options, f"{stream.application}-0-0", blocks())
    assert not stream.open()
    assert stream.values() == []


def test_a_transaction_that_timed_out_before_the_decision_lets_the_batch_run_again(topics: Topics) -> None:
    stream = Stream(topics)
    standing = stream.prepare()
    opened = stream.tasks(0)
    topics.ask(lambda client: client.transactions.abort(opened[1].transactional_id))
    with pytest.raises(SinkError, match="Nothing of the batch is written"):
        stream.commit(standing, 0, opened)
    assert stream.values() == []
    assert not stream.open()
    stream.run(0)
    assert stream.values() == list(range(10))


@pytest.mark.parametrize("committed", [0, 1])
def test_transactions_that_timed_out_behind_the_decision(
    topics: Topics, monkeypatch: pytest.MonkeyPatch, committed: int
) -> None:
    monkeypatch.setattr(sink_commit, "AT_ONCE", 1)
    stream = Stream(topics)
    stream.run(0)
    standing = stream.prepare()
    opened = stream.tasks(1)
    with pytest.MonkeyPatch.context() as patching:
        crash_at(patching, 5 + committed)
        with pytest.raises(Killed):
            stream.commit(standing, 1, opened)
    for each in opened[committed:]:
        topics.ask(lambda client, each=each: client.transactions.abort(each.transactional_id))
    if committed:
        with pytest.raises(RowsLost, match=r"1 of its 2 transactions .* 6 rows with them: .*-2-0 \(6 rows\)"):
            stream.prepare()
        # It is said again, until somebody decides.
        with pytest.raises(RowsLost):
            stream.prepare()
        assert stream.prepare(fail_on_data_loss=False).note.batch == 1
        assert len(stream.values()) == 14
    else:
        stream.run(1)
        assert stream.values() == list(range(20))


def test_a_new_checkpoint_under_an_old_name_is_refused(topics: Topics) -> None:
    stream = Stream(topics)
    stream.run(0)
    with pytest.raises(SinkError, match="needs an applicationId of its own"):
        stream.commit(stream.prepare(), 0, stream.tasks(0), query="another")
    stream.run(1)
    with pytest.raises(SinkError, match=r"batch 0 .* older than batch 1"):
        stream.commit(stream.prepare(), 0, stream.tasks(0))
    assert stream.values() == list(range(20))


def test_large_rows_are_cut_into_batches(topics: Topics) -> None:
    stream = Stream(topics, **{"kafka.compression.type": "zstd"})
    values = [b"%d" % number + b" " * size for number, size in enumerate((700_000, 10, 300_000, 300_000, 1, 600_000))]
    keys = [b"a", b"a", None, None, b"b", b"a"]
    block = pa.record_batch({"value": pa.array(values), "key": pa.array(keys)})
    standing = stream.prepare()
    opened = write_transaction(
        stream.options, f"{stream.application}-0-0", iter([block, block.slice(0, 0), block.slice(3)])
    )
    assert opened is not None
    assert opened.rows == 9
    stream.commit(standing, 0, [opened])
    assert stream.values() == [0, 1, 2, 3, 3, 4, 4, 5, 5]


@pytest.mark.parametrize("limit", [1_048_588, 50_000])
@pytest.mark.parametrize("with_headers", [False, True])
def test_rows_that_fit_a_topic_are_not_put_into_batches_that_do_not(
    topics: Topics, limit: int, with_headers: bool
) -> None:
    stream = Stream(topics)
    topics.ask(lambda client: client.admin.alter_topic_config(stream.topic, {"max.message.bytes": str(limit)}))
    # One that nearly fills a batch, and small ones before and behind it, which would go into the same.
    sizes = [limit // 100] * 30 + [limit - 200] + [limit // 100] * 30 + [limit // 2] * 3
    columns = {
        "value": pa.array([b"%d" % number + b" " * (size - 10) for number, size in enumerate(sizes)]),
        "partition": pa.array([0] * len(sizes), pa.int32()),
    }
    if with_headers:
        kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
        columns["headers"] = pa.array([[{"key": "h", "value": b"x"}]] * len(sizes), kind)
    standing = stream.prepare()
    opened = write_transaction(stream.options, f"{stream.application}-0-0", iter([pa.record_batch(columns)]))
    assert opened is not None
    stream.commit(standing, 0, [opened])
    assert stream.values() == list(range(len(sizes)))


@pytest.mark.parametrize(
    ("fields", "topic", "said"),
    [
        ({"key": "string"}, "t", "no column 'value'"),
        ({"value": "string"}, "", "Give the option topic"),
        ({"value": "bigint"}, "t", "the column value is bigint: it must be string or binary"),
        ({"value": "string", "offset": "bigint"}, "t", "no column 'offset'"),
    ],
)
def test_columns_that_cannot_be_written_are_refused(fields: dict[str, str], topic: str, said: str) -> None:
    with pytest.raises(InvalidRows, match=said):
        check_schema(fields, topic)
