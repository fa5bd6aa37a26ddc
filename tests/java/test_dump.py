"""Kafka's `DumpLogSegments` reads the files that Headrace wrote."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.java.conftest import Java
from tests.serve_process import ServeProcess

pytestmark = [pytest.mark.java, pytest.mark.timeout(240)]

TOOLS = "org.apache.kafka.tools"
DUMP = f"{TOOLS}.DumpLogSegments"
RECORDS = 30_000


@pytest.fixture(scope="module")
def data(java: Java, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a broker leaves behind: idempotent batches in several segments, compressed ones, and committed offsets."""
    folder = tmp_path_factory.mktemp("dump") / "data"
    with ServeProcess(folder, "--log-segment-bytes", "1000000") as broker:
        server = ("--bootstrap-server", broker.kafka)
        for topic in ("plain", "zstd"):
            load = ("--topic", topic, "--num-records", str(RECORDS), "--record-size", "100", "--throughput", "-1")
            properties = ("--command-property", f"compression.type={topic.replace('plain', 'none')}")
            java(f"{TOOLS}.ProducerPerformance", *load, *server, *properties)
        java(
            f"{TOOLS}.consumer.ConsoleConsumer",
            *(*server, "--topic", "plain", "--group", "dumped", "--from-beginning"),
            *("--max-messages", "100", "--timeout-ms", "30000"),
        )
        broker.stop()
    return folder


def files(folder: Path, suffix: str) -> str:
    found = sorted(str(path) for path in folder.glob(f"*{suffix}"))
    assert found, f"no {suffix} in {folder}"
    return ",".join(found)


@pytest.mark.parametrize("topic", ["plain", "zstd"])
def test_log(java: Java, data: Path, topic: str) -> None:
    said = java(DUMP, "--deep-iteration", "--files", files(data / f"{topic}-0", ".log"))
    batches = re.findall(r"^baseOffset: (\d+) lastOffset: (\d+) .*isvalid: (\w+)", said, re.MULTILINE)
    assert {valid for *_, valid in batches} == {"true"}
    offsets = [int(offset) for offset in re.findall(r"^\| offset: (\d+)", said, re.MULTILINE)]
    assert offsets == list(range(RECORDS))
    assert f"compresscodec: {'none' if topic == 'plain' else topic}" in said


def test_there_are_several_segments(data: Path) -> None:
    assert len(files(data / "plain-0", ".log").split(",")) > 2


@pytest.mark.parametrize("topic", ["plain", "zstd"])
def test_offset_index(java: Java, data: Path, topic: str) -> None:
    indexes = files(data / f"{topic}-0", ".index")
    said = java(DUMP, "--index-sanity-check", "--files", indexes)
    assert said.count("passed sanity check") == len(indexes.split(","))
    # Without the sanity check every entry is held against the log, and a mismatch is said.
    said = java(DUMP, "--files", indexes)
    assert "offset: " in said
    assert "ismatch" not in said


@pytest.mark.parametrize("topic", ["plain", "zstd"])
def test_time_index(java: Java, data: Path, topic: str) -> None:
    said = java(DUMP, "--files", files(data / f"{topic}-0", ".timeindex"))
    assert "timestamp: " in said
    assert "ismatch" not in said
    assert "out of order" not in said


def test_producer_snapshot(java: Java, data: Path) -> None:
    said = java(DUMP, "--files", files(data / "plain-0", ".snapshot"))
    assert "producerId: " in said
    # A clean stop leaves the state as of the end: nothing need be read from the log to know it.
    assert f"lastSequence: {RECORDS - 1} lastOffset: {RECORDS - 1}" in said


def test_committed_offsets(java: Java, data: Path) -> None:
    logs = [path for path in data.glob("__consumer_offsets-*/*.log") if path.stat().st_size]
    said = java(DUMP, "--offsets-decoder", "--files", ",".join(map(str, logs)))
    assert '"group":"dumped"' in said
    assert re.search(r'"topic":"plain","partition":0\}\} payload: \{"version":"\d","data":\{"offset":100', said)
    assert "Error" not in said
    assert "isvalid: false" not in said
