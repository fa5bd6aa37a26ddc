from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Cli

import headrace
from headrace.embedded import Broker


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def stopped(cli: Cli, directory: Path) -> Path:
    """The data directory of a stopped broker that took 300 messages into two partitions."""
    with headrace.Broker(data=directory) as broker:
        at = ("--bootstrap", broker.kafka)
        cli("topic", "create", "t", "--partitions", 2, *at)
        for partition, compression in ((0, "none"), (1, "zstd")):
            lines = b"".join(b"message %d\n" % number for number in range(150))
            cli("produce", "t", "--partition", partition, "--compression", compression, *at, stdin=lines)
    return directory


def test_verify_and_dump(cli: Cli, stopped: Path):
    outcome = cli("log", "verify", stopped)
    assert outcome.code == 0, outcome
    assert "sound" in outcome.text
    assert cli("log", "verify", stopped, "--json").json == []

    batches = cli("log", "dump", stopped, "--topic", "t", "--json").json
    assert sum(batch["records"] for batch in batches) == 300
    assert {batch["compression"] for batch in batches} == {"none", "zstd"}
    assert {batch["checksum"] for batch in batches} == {"fits"}
    records = [json.loads(line) for line in cli("log", "dump", stopped, "--partition", 1, "--records").lines]
    assert [record["value"] for record in records] == [f"message {number}" for number in range(150)]
    assert len(cli("log", "dump", stopped).lines) == 1 + len(batches)


def test_damage_is_found(cli: Cli, stopped: Path):
    segment = stopped / "t-0" / f"{0:020d}.log"
    contents = bytearray(segment.read_bytes())
    contents[100] ^= 1
    segment.write_bytes(contents)
    outcome = cli("log", "verify", stopped)
    assert outcome.code == 1
    assert "damage" in outcome.text
    assert "t-0" in outcome.text
    assert "1 of the findings" in outcome.err
    assert "WRONG" in cli("log", "dump", stopped).text
    assert cli("log", "dump", stopped, "--records").code == 1


def test_a_running_brokers_directory_is_refused(cli: Cli, headrace_broker: Broker):
    for command in ("verify", "dump"):
        outcome = cli("log", command, headrace_broker.data)
        assert outcome.code == 1
        assert "is in use" in outcome.err


def test_no_directory_is_made_by_looking(cli: Cli, tmp_path: Path):
    assert "is no directory" in cli("log", "verify", tmp_path / "nothing").err
    assert not (tmp_path / "nothing").exists()
    assert "is empty" in cli("log", "verify", tmp_path).err
