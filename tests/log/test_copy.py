"""Copying partitions as files: what is pinned stays, and what of an old directory can be trusted."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from tests.log import batches
from tests.log.test_native import SMALL, append, batch, crash, opened

from headrace.cluster.copying.messages import Part, decode, encode
from headrace.errors import HeadraceError
from headrace.log import checkpoint as checkpoints
from headrace.log.copy.parts import CopiedFile, CopiedPartition, CopyHead, digest_of
from headrace.log.copy.target import COPIED, CopyTarget, WantedFile, checkpoint_of, prepare
from headrace.log.interface import TopicSettings
from headrace.log.names import segment_bases
from headrace.log.native import NativeLog
from headrace.runtime.disk import SystemDisk
from headrace.runtime.real import real_runtime

ONE_BATCH = TopicSettings(segment_bytes=1)
ID = "00" * 16


async def test_what_is_pinned_stays_until_it_was_copied(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        partition = log.local((await log.create("t", 1, {}, ONE_BATCH)).partitions[0])
        for _ in range(5):
            await append(partition, batch())
        await log.upkeep.checkpoint()
        log.pin(partition)
        log.pin(partition)
        for _ in range(5):
            await append(partition, batch())
            await log.upkeep.checkpoint()
        snapshots = segment_bases(log.runtime.disk, "t-0", ".snapshot")
        assert len(snapshots) > 2, "a copy is as of an earlier end"
        await partition.trim(4)
        log.unpin(partition)
        assert segment_bases(log.runtime.disk, "t-0") == list(range(10))
        log.unpin(partition)
        log.upkeep.drop_expired(partition)
        assert segment_bases(log.runtime.disk, "t-0") == list(range(4, 10))
        assert log.pins == {}


async def test_only_what_a_recovery_point_covers_is_kept(tmp_path: Path) -> None:
    log = NativeLog(real_runtime(str(tmp_path)), SMALL)
    await log.start()
    partition = log.local((await log.create("t", 1, {}, TopicSettings())).partitions[0])
    for _ in range(3):
        await append(partition, batch())
    await log.upkeep.checkpoint()
    size = (tmp_path / "t-0" / f"{0:020d}.log").stat().st_size
    for _ in range(3):
        await append(partition, batch())
    partition.write_back()
    await crash(log)
    assert (tmp_path / "t-0" / f"{0:020d}.log").stat().st_size > size
    (tmp_path / "t-0" / f"{9:020d}.log{COPIED}").write_bytes(b"half")
    prepare(SystemDisk(str(tmp_path)))
    assert (tmp_path / "t-0" / f"{0:020d}.log").stat().st_size == size
    assert not list((tmp_path / "t-0").glob(f"*{COPIED}"))
    assert not (tmp_path / checkpoints.PATH).exists()
    assert not list((tmp_path / "journal").iterdir())


def test_a_copy_keeps_what_is_the_same_and_asks_for_the_rest(tmp_path: Path) -> None:
    disk = SystemDisk(str(tmp_path))
    target = CopyTarget(disk)
    record = {"name": "t", "id": ID, "config": {}, "settings": checkpoints.settings_to_json(ONE_BATCH)}
    head = CopyHead(7, ((1, 1),), {"c": 3}, ({**record, "partitions": [(0, 2)]},))
    target.begin(head)
    first, second = batches.batch(0), batches.batch(1)

    def part(contents: bytes) -> CopiedPartition:
        (tmp_path / "theirs").write_bytes(contents)
        with closing(disk.open("theirs")) as file:
            found = CopiedFile(f"{0:020d}.log", len(contents), digest_of(file, len(contents)))
        return CopiedPartition(ID, 0, 0, 2, 1, ((1, 0),), 0, (found,), ())

    def receive(partition: CopiedPartition, position: int, contents: bytes) -> None:
        target.begin_file(partition, f"{0:020d}.log", position)
        target.write(contents[position:])
        assert not (tmp_path / "t-0" / f"{0:020d}.log").exists(), "half of a file has another name"
        target.end_file()
        target.finish(partition)

    short = part(first)
    assert target.compare(short) == [WantedFile(f"{0:020d}.log")]
    receive(short, 0, first)
    assert target.compare(short) == []
    long = part(first + second)
    (wanted,) = target.compare(long)
    assert (wanted.have, wanted.digest) == (len(first), short.files[0].digest)
    receive(long, wanted.have, first + second)
    assert (tmp_path / "t-0" / f"{0:020d}.log").read_bytes() == first + second
    other = part(second + first)
    assert target.compare(other) == [WantedFile(f"{0:020d}.log")], "as long, but another"
    target.install(head, [long], "the cluster")
    found = checkpoints.load(disk)
    assert found is not None
    assert found == checkpoint_of(head, [long], "the cluster")
    assert (found.journal_from, found.topics[0].partitions, found.counters) == (8, [(0, 2)], {"c": 3})


@pytest.mark.parametrize("name", ["../t", "checkpoint", f"{0:020d}.log.copied", "x" * 20 + ".log"])
def test_a_file_that_no_partition_has_is_refused(name: str) -> None:
    partition = CopiedPartition(ID, 0, 0, 1, 1, (), 0, (CopiedFile(name, 1, 1),), ())
    with pytest.raises(HeadraceError, match="a file has a name that none of a partition has"):
        decode(encode(Part(partition)))
