"""Each job by its command, on a standalone cluster of two workers: what comes out is compared with what was sent."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from bench.peers.spark import Cluster
from confluent_kafka import Producer
from tests.pipeline.jobs.questions import NOON, SECOND, disordered, histories
from tests.pipeline.jobs.test_sessions_on_spark import check, end, fill
from tests.pipeline.on_cluster import CONF
from tests.pipeline.test_sink import contents
from tests.pipeline.topics import Topics

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(1_500)]

MINUTE = 60 * SECOND
# Tasks wait for both workers: the first one could do all there is to do before the second is there.
BOTH = {"spark.cores.max": "2", "spark.scheduler.minRegisteredResourcesRatio": "1.0"}


class Command:
    """`headrace pipeline` with `--master` of the cluster, in a folder of its own."""

    def __init__(self, cluster: Cluster, topics: Topics, folder: Path) -> None:
        self._cluster = cluster
        self._place = ["--bootstrap", topics.address, "--master", cluster.master]
        self._place += [each for name, value in (CONF | BOTH).items() for each in ("--conf", f"{name}={value}")]
        self._folder = folder

    def __call__(self, job: str, *flags: str, code: int = 0) -> dict[str, Any]:
        """What it answers. Both workers have had tasks."""
        before = set(self._cluster.folder.glob("worker-*/app-*"))
        command = [sys.executable, "-m", "headrace.cli", "pipeline", job, *flags, *self._place]
        done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False, cwd=self._folder)
        assert done.returncode == code, done.stderr[-3_000:]
        places = set(self._cluster.folder.glob("worker-*/app-*")) - before
        tasks = [any("Running task" in path.read_text() for path in place.glob("*/stderr")) for place in places]
        assert tasks == [True, True], places
        return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.fixture
def command(cluster: Cluster, topics: Topics, tmp_path: Path) -> Command:
    return Command(cluster, topics, tmp_path)


def test_sessions(command: Command, topics: Topics, tmp_path: Path) -> None:
    topic, to = topics.create(2), "clustered"
    happened = histories(30, 5)
    fill(topics, topic, disordered(happened, 6, 25 * SECOND))
    flags = ("--topics", topic, "--to", to, "--checkpoint", str(tmp_path / "checkpoint"), "--lateness", "30s")
    first = command("sessions", *flags, "--idle", "5m", "--forget", "never")
    assert (first["events"], first["late"], first["broken"]) == (len(happened), 0, 0)
    # From its checkpoint, whichever worker has which part of the state now.
    end(topics, topic, NOON + 600 * SECOND)
    second = command("sessions", *flags, "--idle", "5m", "--forget", "never")
    assert (second["events"], sum(second["states"].values())) == (1, 31)
    check(topics, to, happened, idle=True)


def test_logs(command: Command, topics: Topics, tmp_path: Path) -> None:
    import pyarrow.dataset as ds

    topic, into = topics.create(2), topics.create()
    for partition in range(2):
        lines = [
            {
                "ts": NOON + number * SECOND,
                "service": f"s{number % 3}",
                "level": "error" if number % 10 == 0 else "info",
            }
            for number in range(600)
        ]
        topics.fill(topic, (json.dumps(each).encode() for each in lines), partition=partition, timestamp=NOON + MINUTE)
    topics.fill(topic, [b"what"], timestamp=NOON + MINUTE)
    done = command("logs", "--topics", topic, "--to", str(tmp_path / "out"), "--into", into, "--lateness", "1h")
    assert (done["rows"], done["parsed"], done["broken"], done["errors"]) == (1201, 1200, 1, 120)
    rows = ds.dataset(tmp_path / "out" / "windows", format="parquet").to_table().to_pylist()
    assert [(row["lines"], row["errors"]) for row in rows] == [(40, 4)] * 30
    assert len({(row["window"], row["service"]) for row in rows}) == 30
    (aside,) = ds.dataset(tmp_path / "out" / "aside", format="parquet").to_table().to_pylist()
    assert aside["value"] == b"what"
    assert len(contents(topics, into)) == done["windows"] == 30


def test_archive_and_replay(command: Command, topics: Topics, tmp_path: Path) -> None:
    import pyarrow.dataset as ds

    topic = topics.create(2)
    for partition in range(2):
        topics.fill(topic, (b"a%d" % number for number in range(500)), partition=partition, timestamp=NOON)
    # What workers do not have: they get it from the driver.
    (tmp_path / "fixes.py").write_text(
        "def rows(row):\n    return {**row, 'value': row['value'].upper()}\n\n\n"
        "def frame(records):\n    return records.selectExpr('upper(CAST(value AS STRING)) AS value', 'partition')\n"
    )
    expected = {partition: [b"A%d" % number for number in range(500)] for partition in range(2)}

    def found(into: str) -> dict[int, list[bytes]]:
        values: dict[int, list[bytes]] = {}
        for record in contents(topics, into):
            values.setdefault(record.partition, []).append(record.value)
        return values

    for shape in ("rows", "frame"):
        into = f"{topic}-{shape}"
        done = command(
            "replay", "--topics", topic, "--into", into, "--function", f"fixes:{shape}", "--per", shape
        )  # fmt: skip
        assert (done["read"], done["written"], done["left"]) == (1_000, 1_000, 0)
        assert found(into) == expected
    archived = command("archive", "--topics", topic, "--to", str(tmp_path / "archive"), "--file-size", "4k")
    assert (archived["rows"], archived["lag"]) == (1_000, 0)
    folder = ("--data", str(tmp_path / "archive"), "--topics", topic)
    assert command("replay", *folder, "--to", str(tmp_path / "table"))["written"] == 1_000
    rows = ds.dataset(tmp_path / "table" / "records", format="parquet").to_table().select(["partition", "value"])
    wanted = [(partition, b"a%d" % number) for partition in range(2) for number in range(500)]
    assert sorted(tuple(row.values()) for row in rows.to_pylist()) == sorted(wanted)


def test_audit(command: Command, topics: Topics) -> None:
    topic = topics.create(2)
    producer = Producer({"bootstrap.servers": topics.address})
    # One of them came twice.
    for number in (*range(600), 0):
        headers = [("headrace-id", b"shop-%d" % number)]
        producer.produce(topic, b"x", partition=number % 2, timestamp=NOON + number % 3 * MINUTE, headers=headers)
    assert producer.flush(20) == 0
    counts = [{"topic": topic, "minute": NOON + minute * MINUTE, "sent": 200 + minute} for minute in range(3)]
    said = {"instance": "shop", "sequence": 0, "t": NOON, "within": 0, "ids": True, "last": True, "counts": counts}
    topics.fill("headrace-audit", [json.dumps(said).encode()], timestamp=NOON)
    topics.ask(lambda client: client.admin.commit("readers", {(topic, 0): 301, (topic, 1): 290}))
    span = ("--since", f"@{NOON}", "--until", f"@{NOON + 3 * MINUTE}", "--http", "off", "--format", "json")
    report = command("audit", "--topics", topic, "--groups", "readers", *span, code=1)
    (total,) = report["topics"]
    assert [total[name] for name in ("produced", "stored", "lost", "duplicates")] == [603, 601, 3, 1]
    assert [(each["stored"], each["lost"]) for each in report["minutes"]] == [(201, 0), (200, 1), (200, 2)]
    (readers,) = report["queues"]
    assert (readers["acknowledged"], readers["undelivered"]) == (591, 10)
