"""Reading a broker's folder with no broker running, without Spark."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
from tests.pipeline.topics import Topics

import headrace
from headrace.client import EARLIEST, LATEST
from headrace.config import Config
from headrace.errors import CorruptLog, DataDirectoryInvalid
from headrace.format import records
from headrace.log.interface import Partition, TopicSettings
from headrace.log.native import NativeLog
from headrace.pipeline.folder import FolderInUse, FolderOrigin
from headrace.pipeline.origin import DataLost, Origin, Range
from headrace.runtime.real import real_runtime

T = TypeVar("T")

NOW = 1_700_000_000_000


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def look(folder: Path, ask: Callable[[Origin], T]) -> T:
    """Ask a folder something; it stays as it is."""

    async def asking() -> T:
        async with FolderOrigin.open(str(folder)) as origin:
            return await ask(origin)

    before = tree(folder)
    try:
        return asyncio.run(asking())
    finally:
        assert tree(folder) == before


def values(
    folder: Path, topic: str, partition: int = 0, start: int = 0, end: int | None = None, *, committed: bool = True
) -> list[bytes | None]:
    async def ask(origin: Origin) -> list[bytes | None]:
        last = end
        if last is None:
            last = (await origin.offsets({(topic, partition): LATEST}, committed=committed))[topic, partition]
        wanted = Range(topic, partition, start, last)
        found = []
        async for batches in origin.batches(wanted, committed=committed, skip_lost=False):
            for batch in batches:
                found += [record[3] for record in records.parse(batch, 1 << 20) if start <= record[0] < last]
        return found

    return look(folder, ask)


def test_what_only_the_journal_has_is_read_and_nothing_is_written(tmp_path: Path) -> None:
    data, crashed = tmp_path / "data", tmp_path / "crashed"
    with headrace.Broker(data=str(data)) as broker:
        topics = Topics(broker.kafka)
        topic = topics.create(2)
        topics.fill(topic, (b"%d" % number for number in range(1_000)), codec="lz4")
        topics.fill(topic, (b"%d" % number for number in range(50)), partition=1)
        # The folder as it would be if the process were killed now.
        shutil.copytree(data, crashed)
        in_segments = sum(path.stat().st_size for path in crashed.glob(f"{topic}-*/*.log"))
        assert in_segments < 500, "everything was in the segments already: the journal is not looked at here"
        # A broker that runs has its folder for itself.
        with pytest.raises(FolderInUse, match="a broker runs on"):
            look(data, lambda origin: origin.topics())
    expected = [b"%d" % number for number in range(1_000)]
    for folder in (crashed, data):
        assert values(folder, topic) == expected
        assert values(folder, topic, start=990, end=993) == expected[990:993]
        assert values(folder, topic, 1) == expected[:50]
    assert (data / "clean-shutdown").exists()
    assert not (crashed / "clean-shutdown").exists()
    # And a broker finds the folder as good as it was.
    with headrace.Broker(data=str(crashed)) as broker:
        ends = Topics(broker.kafka).ask(lambda client: client.admin.list_offsets({(topic, 0): LATEST}))
        assert ends[topic, 0].offset == 1_000


async def fill(partition: Partition, value: bytes, *, kind: int | None = None, **producer: int) -> None:
    batch = records.build([(NOW, None, value, [])], **producer) if kind is None else None
    if batch is None:
        batch = records.control(kind, 1, producer["producer_id"], 0, NOW)
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    if not partition.append(batch, lambda error: done.set_result(None)).durable:
        await done


@pytest.mark.parametrize("clean", [True, False])
def test_aborted_records_are_left_out_and_open_transactions_end_it(tmp_path: Path, clean: bool) -> None:
    data, seen = tmp_path / "data", tmp_path / "seen"

    async def make() -> None:
        runtime = real_runtime(str(data))
        log = NativeLog(runtime, Config())
        await log.start()
        partition = (await log.create("t", 1, {}, TopicSettings(segment_bytes=300))).partitions[0]
        one = {"producer_id": 5, "producer_epoch": 0, "attributes": 0x10}
        two = {"producer_id": 6, "producer_epoch": 0, "attributes": 0x10}
        await fill(partition, b"plain")
        await fill(partition, b"doomed", base_sequence=0, **one)
        await fill(partition, b"kept", base_sequence=0, **two)
        await fill(partition, b"doomed too", base_sequence=1, **one)
        await fill(partition, b"", kind=records.ABORT, producer_id=5)
        await fill(partition, b"", kind=records.COMMIT, producer_id=6)
        await fill(partition, b"second try", base_sequence=2, **one)
        await fill(partition, b"", kind=records.COMMIT, producer_id=5)
        await fill(partition, b"open", base_sequence=1, **two)
        await fill(partition, b"behind it")
        if not clean:
            shutil.copytree(data, seen)
        await log.stop()
        runtime.offload.close()
        if clean:
            shutil.copytree(data, seen)

    asyncio.run(make())
    assert values(seen, "t") == [b"plain", b"kept", b"second try"]
    assert values(seen, "t", start=2) == [b"kept", b"second try"]
    everything = [b"plain", b"doomed", b"kept", b"doomed too", b"second try", b"open", b"behind it"]
    assert values(seen, "t", committed=False) == everything


def test_times_ends_and_what_is_gone(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with headrace.Broker(data=str(data)) as broker:
        topics = Topics(broker.kafka)
        topic = topics.create()
        for step in range(5):
            topics.fill(topic, [b"%d" % step] * 10, timestamp=NOW + step * 1_000)
        topics.ask(lambda client: client.admin.delete_records({(topic, 0): 12}))

    async def offsets(origin: Origin) -> list[int]:
        times = [EARLIEST, NOW + 2_500, NOW + 90_000, LATEST]
        return [(await origin.offsets({(topic, 0): time}, committed=True))[topic, 0] for time in times]

    assert look(data, offsets) == [12, 30, -1, 50]
    assert values(data, topic, start=12, end=21) == [b"1"] * 8 + [b"2"]
    with pytest.raises(DataLost, match="from 3 to 20"):
        values(data, topic, start=3, end=20)
    with pytest.raises(DataLost):
        values(data, "nowhere", end=5)


def test_damage_is_named(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with headrace.Broker(data=str(data)) as broker:
        topics = Topics(broker.kafka)
        topic = topics.create()
        topics.fill(topic, [b"a" * 100])
    [segment] = data.glob(f"{topic}-0/*.log")
    whole = bytearray(segment.read_bytes())
    whole[120] ^= 1
    segment.write_bytes(whole)
    with pytest.raises(CorruptLog, match="at offset 0 does not fit its checksum"):
        values(data, topic)


def test_another_folder_is_refused_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(DataDirectoryInvalid, match="not a broker's data directory"):
        look(tmp_path, lambda origin: origin.topics())
    with pytest.raises(DataDirectoryInvalid, match="not a broker's data directory"):
        look(tmp_path / "nowhere", lambda origin: origin.topics())
    assert not (tmp_path / "nowhere").exists()
