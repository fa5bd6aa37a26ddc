from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
from pathlib import Path

import pytest
from tests.cli.conftest import Cli

import headrace
from headrace.config import Config
from headrace.embedded import Broker
from headrace.format import records
from headrace.format.batch import TRANSACTIONAL
from headrace.log.interface import TopicSettings
from headrace.log.native import NativeLog
from headrace.runtime.disk import SystemDisk
from headrace.runtime.real import real_runtime


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
    found = [json.loads(line) for line in cli("log", "dump", stopped, "--partition", 1, "--records").lines]
    assert [record["value"] for record in found] == [f"message {number}" for number in range(150)]
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


@pytest.mark.parametrize("lost", ["t-0/00000000000000000000.log", "t-1", "checkpoint", "a batch"])
def test_what_is_missing_is_found(cli: Cli, stopped: Path, lost: str):
    path = stopped / ("t-0/00000000000000000000.log" if lost == "a batch" else lost)
    if path.is_dir():
        shutil.rmtree(path)
    elif lost == "a batch":
        # Cut where a batch begins: what is left is without a fault.
        path.write_bytes(b"")
    else:
        path.unlink()
    outcome = cli("log", "verify", stopped, "--json")
    assert outcome.code == 1, outcome
    folder = lost.partition("/")[0] if lost != "a batch" else "t-0"
    assert [(row["path"], row["severity"]) for row in outcome.json if row["severity"] == "damage"] == [
        (folder, "damage")
    ]


async def test_after_a_crash_the_journal_counts(cli: Cli, directory: Path):
    """Records that were deleted, and a topic, are not missing; what the journal has lost is."""
    log = NativeLog(real_runtime(str(directory)), Config(checkpoint_ms=600_000))
    await log.start()
    for name in ("trimmed", "deleted"):
        topic = await log.create(name, 1, {}, TopicSettings(segment_bytes=1_000))
        for number in range(30):
            done = asyncio.get_running_loop().create_future()
            topic.partitions[0].append(records.build([(0, None, b"value %d" % number * 9, [])]), done.set_result)
            await done
    await log.upkeep.checkpoint()
    await log.topics["trimmed"].partitions[0].trim(20)
    await log.delete("deleted")
    await log.upkeep.stop()
    log.runtime.disk.unlock()
    log.runtime.offload.close()
    assert not (directory / "trimmed-0" / f"{0:020d}.log").exists()
    outcome = cli("log", "verify", directory, "--json")
    assert (outcome.code, outcome.json) == (0, [])
    journal = max((directory / "journal").iterdir(), key=lambda path: path.read_bytes().rfind(b'"delete"'))
    journal.write_bytes(bytes(1) + journal.read_bytes()[1:])
    outcome = cli("log", "verify", directory, "--json")
    assert outcome.code == 1
    assert "journal" in {row["path"] for row in outcome.json}


def test_a_running_brokers_directory_is_refused(cli: Cli, headrace_broker: Broker):
    for command in ("verify", "dump"):
        outcome = cli("log", command, headrace_broker.data)
        assert outcome.code == 1
        assert "is in use" in outcome.err


def test_no_directory_is_made_by_looking(cli: Cli, tmp_path: Path):
    assert "is not a directory" in cli("log", "verify", tmp_path / "nothing").err
    assert not (tmp_path / "nothing").exists()
    assert "is empty" in cli("log", "verify", tmp_path).err
    (tmp_path / "letters").mkdir()
    for command in ("verify", "dump", "repair"):
        assert "is not a broker's" in cli("log", command, tmp_path).err
    assert [each.name for each in tmp_path.iterdir()] == ["letters"]


def test_what_is_mounted_read_only_can_be_looked_at(cli: Cli, stopped: Path, monkeypatch: pytest.MonkeyPatch):
    def lock(self: SystemDisk) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), ".lock")

    monkeypatch.setattr(SystemDisk, "lock", lock)
    assert cli("log", "verify", stopped).code == 0
    assert cli("log", "dump", stopped, "--json").json


async def test_a_dump_tells_what_became_of_transactions(cli: Cli, directory: Path):
    runtime = real_runtime(str(directory))
    log = NativeLog(runtime, Config(data=str(directory)))
    await log.start()
    partition = (await log.create("t", 1, {}, TopicSettings())).partitions[0]
    for producer, commit in ((1, False), (2, True), (3, None)):
        values = [(1_000, None, b"of %d" % producer, [])]
        partition.append(
            records.build(values, producer_id=producer, producer_epoch=0, base_sequence=0, attributes=TRANSACTIONAL)
        )
        if commit is not None:
            partition.append(records.control(int(commit), 0, producer, 0, 1_000))
    partition.append(records.build([(1_000, None, b"plain", [])]))
    await log.stop()
    runtime.offload.close()
    rows = cli("log", "dump", directory, "--json").json
    assert [(row["producer"], row["kind"]) for row in rows] == [
        (1, "aborted"), (1, "abort"), (2, "committed"), (2, "commit"), (3, "open"), (-1, "data"),
    ]  # fmt: skip
    found = [json.loads(line)["value"] for line in cli("log", "dump", directory, "--records").lines]
    assert found == ["of 1", "of 2", "of 3", "plain"]
