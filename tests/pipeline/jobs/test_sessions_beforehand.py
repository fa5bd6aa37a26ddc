"""`sessions`: what is refused before a query is started, with a real broker and without Spark."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from headrace.client import Client
from headrace.embedded import Broker
from headrace.errors import HeadraceError
from headrace.pipeline.jobs import sessions
from headrace.pipeline.jobs.queries import stands_at, waiting_offsets
from headrace.pipeline.jobs.rounds import ask
from headrace.pipeline.jobs.sessions import _Followed as Followed
from headrace.pipeline.options import Position, SourceOptions, parse


class Started(Exception):
    """A query would be."""


def run(broker: Broker, checkpoint: Path, **more: Any) -> None:
    class NoSpark:
        def __getattr__(self, name: str) -> Any:
            raise Started

    given = {"topics": ["site"], "to": "questions", **more}
    sessions(NoSpark(), bootstrap=broker.kafka, checkpoint=checkpoint, **given)  # type: ignore[arg-type]


def produce(broker: Broker, topic: str) -> None:
    async def sending() -> None:
        async with Client(broker.kafka) as client, client.producer() as producer:
            await producer.send(topic, b"{}", key=b"q")
            await producer.flush()

    asyncio.run(sending())


def test_a_new_checkpoint_does_not_go_on_with_what_another_has_written(headrace_broker: Broker, tmp_path: Path) -> None:
    with pytest.raises(Started):
        run(headrace_broker, tmp_path / "one")
    produce(headrace_broker, "questions.state")
    with pytest.raises(HeadraceError, match=r"questions.state was written from another checkpoint than .*two"):
        run(headrace_broker, tmp_path / "two")
    # The one that has written it has begun a batch.
    (tmp_path / "one" / "questions" / "offsets").mkdir(parents=True)
    with pytest.raises(Started):
        run(headrace_broker, tmp_path / "one")
    with pytest.raises(HeadraceError, match="is that of `sessions` to questions, not of `sessions` to others"):
        run(headrace_broker, tmp_path / "one", to="others")


def test_what_makes_no_sense_is_refused(headrace_broker: Broker, tmp_path: Path) -> None:
    for more, reason in (
        ({"pattern": "questions.*", "topics": []}, "is written, and would be read, too"),
        ({"idle": 20.0, "forget": 10.0}, "would be forgotten .* before it is idle"),
        ({"forget": -1.0}, "forget cannot be -1 seconds"),
        ({"to": ""}, "need a name"),
        ({"options": {"Columns": "value"}}, "the option Columns is for queries"),
    ):
        with pytest.raises(HeadraceError, match=reason):
            run(headrace_broker, tmp_path / "checkpoint", **more)
    end = {"endingTimestamp": "1000"}
    with pytest.raises(HeadraceError, match="a stream has no end"):
        run(headrace_broker, tmp_path / "checkpoint", options=end, every=5.0)
    assert not (tmp_path / "checkpoint").exists()
    with pytest.raises(Started):
        run(headrace_broker, tmp_path / "checkpoint", options=end)


def test_what_waits_is_known_before_the_first_progress(headrace_broker: Broker, tmp_path: Path) -> None:
    """After a resume Spark says nothing for a while, and that is not nothing that waits."""
    for _ in range(7):
        produce(headrace_broker, "site")
    options = parse(
        {"kafka.bootstrap.servers": headrace_broker.kafka, "subscribe": "site", "startingOffsets": "earliest"},
        streaming=True,
    )

    def waiting(options: SourceOptions = options) -> int:
        left, _ = ask(options, lambda origin: waiting_offsets(origin, options, tmp_path))
        return sum(left.values())

    assert waiting() == 7
    for name, text in (("offsets/3", 'v1\n{}\n{"site":{"0":5}}'), ("offsets/4", 'v1\n{}\n{"site":{"0":7}}')):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    # The batch 4 was begun and not committed, and runs again.
    for name in ("commits/2", "commits/3", "commits/.3.crc"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert stands_at(tmp_path) == {("site", 0): 5}
    assert waiting() == 2
    # Of a range, what lies behind its end does not wait.
    assert waiting(replace(options, end=Position(by_partition={("site", 0): 6}))) == 1
    told: list[int] = []
    followed = Followed(lambda done: told.append(done.lag), 2)
    progress: list[dict[str, Any]] = []
    query = SimpleNamespace(recentProgress=progress)
    followed.look(query)  # type: ignore[arg-type]
    for number, there in enumerate((None, {"site": {"0": 9}}, {"site": {"0": 7}})):
        source = {"numInputRows": 1, "endOffset": {"site": {"0": 7}}, "latestOffset": there}
        progress.append(
            {"id": "q", "batchId": number, "timestamp": "", "name": "q", "sources": [source], "observedMetrics": {}}
        )
        followed.look(query)  # type: ignore[arg-type]
    assert told == [2, 2, 2, 0]
