from __future__ import annotations

from pathlib import Path

import pytest

from headrace.format.batch import header_at
from headrace.log.epochs import LeaderEpochs
from headrace.log.files import OpenFiles
from headrace.log.producers import ProducerStates
from headrace.log.repair.verify import Expected, Finding, dump, verify
from headrace.log.search_index import BuildJob, build
from headrace.log.segment import Segment
from headrace.log.segments import METADATA_FILE, metadata_of
from headrace.runtime.disk import SystemDisk

from .batches import batch

TOPIC = bytes(15) + b"t"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A partition of two segments with everything beside them."""
    disk = SystemDisk(str(tmp_path))
    disk.mkdir("t-0")
    (tmp_path / "t-0" / METADATA_FILE).write_bytes(metadata_of(TOPIC))
    files = OpenFiles(disk, 4)
    offset = 0
    for base in (0, 40):
        segment = Segment.create(disk, files, "t-0", base, 200)
        for _ in range(20):
            whole = batch(offset, 2, size=40, timestamp=offset)
            header = header_at(whole)
            segment.append([whole], [(header.base_offset, header.last_offset, header.size, header.max_timestamp)])
            offset += 2
        segment.add_aborted(1, base, base + 3, base + 4)
        segment.sync_job()()
    states = ProducerStates()
    states.update(header_at(batch(0, 1, producer=1, producer_epoch=0, sequence=0)))
    (tmp_path / f"t-0/{80:020d}.snapshot").write_bytes(states.dump())
    (tmp_path / "t-0/leader-epoch-checkpoint").write_bytes(LeaderEpochs([(0, 0), (2, 33)]).dump())
    files.close()
    return tmp_path / "t-0"


def findings(folder: Path) -> list[Finding]:
    return list(verify(SystemDisk(str(folder.parent)), "t-0"))


def only(folder: Path) -> Finding:
    found = findings(folder)
    assert len(found) == 1, found
    assert str(found[0])
    return found[0]


def test_nothing_is_wrong(folder: Path) -> None:
    assert findings(folder) == []
    found = list(dump(SystemDisk(str(folder.parent)), "t-0"))
    assert [each.header.base_offset for each in found] == list(range(0, 80, 2))
    assert all(each.fits for each in found)
    assert found[20].path == f"t-0/{40:020d}.log"


def test_a_folder_that_does_not_say_whose_it_is(folder: Path) -> None:
    def found(expected: Expected | None) -> list[tuple[str, bool]]:
        disk = SystemDisk(str(folder.parent))
        return [(each.problem, each.warning) for each in verify(disk, "t-0", expected)]

    assert found(Expected(0, 80, TOPIC)) == []
    other = Expected(0, 80, bytes(16))
    assert found(other) == [("names another topic than the checkpoint", False)]
    (folder / METADATA_FILE).unlink()
    missing = "is missing: the broker does not take the folder for its topic's"
    assert found(Expected(0, 80, TOPIC)) == found(None) == [(missing, False)]
    assert found(Expected(0, 0, TOPIC)) == [(missing, True)], "nothing of it was ever synced"


@pytest.mark.parametrize("base", [0, 40])
def test_a_cut_batch(folder: Path, base: int) -> None:
    path = folder / f"{base:020d}.log"
    path.write_bytes(path.read_bytes()[:-5])
    found = findings(folder)
    assert found[0].path == f"t-0/{base:020d}.log"
    assert found[0].warning == (base == 40)
    # The time index knew of the lost batch, and the next segment begins behind it.
    behind = [f"t-0/{40:020d}.log"] if base == 0 else []
    assert [each.path for each in found[1:]] == [f"t-0/{base:020d}.timeindex", *behind]
    assert found[1].warning


def test_a_flipped_bit(folder: Path) -> None:
    path = folder / f"{0:020d}.log"
    contents = bytearray(path.read_bytes())
    contents[100] ^= 4
    path.write_bytes(contents)
    assert only(folder).problem == "the batch from offset 0 fails its checksum"
    assert not only(folder).warning
    assert not next(dump(SystemDisk(str(folder.parent)), "t-0")).fits


def test_offsets_that_do_not_grow(folder: Path) -> None:
    path = folder / f"{40:020d}.log"
    path.write_bytes(path.read_bytes() + batch(50))
    assert "but 80 was reached" in only(folder).problem
    (folder / f"{70:020d}.log").write_bytes(b"")
    assert any("begins before offset 80" in each.problem for each in findings(folder))


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("damage", ["odd", "value", "place"])
def test_a_broken_index(folder: Path, suffix: str, damage: str) -> None:
    path = folder / f"{0:020d}{suffix}"
    contents = bytearray(path.read_bytes())
    entry = 8 if suffix == ".index" else 12
    assert len(contents) >= 3 * entry
    match damage:
        case "odd":
            contents += b"x"
        case "value":
            contents[2 * entry - 1] ^= 1
        case "place":
            contents[3 * entry - 5] ^= 1
    path.write_bytes(contents)
    found = only(folder)
    assert found.path.endswith(suffix)
    assert found.warning


def test_a_search_index(folder: Path) -> None:
    disk = SystemDisk(str(folder.parent))
    path = folder / f"{40:020d}.search"
    size = (folder / f"{40:020d}.log").stat().st_size
    build(disk, [BuildJob("t-0", 40, size, True, TOPIC, ("key",), 600, 1 << 20)])
    sound = path.read_bytes()
    assert findings(folder) == []
    for damage, word in (
        (b"x" + sound[1:], "head"),
        (sound[:-1], "no block"),
        (sound + b"x", "last 1 bytes are no block"),
        (sound[: len(sound) // 2], "no block"),
    ):
        path.write_bytes(damage)
        found = only(folder)
        assert found.path.endswith(".search")
        assert (found.warning, word in found.problem) == (True, True), found
    # The index of another segment, which is sound in itself.
    path.write_bytes(sound)
    build(disk, [BuildJob("t-0", 0, size, True, TOPIC, ("key",), 600, 1 << 20)])
    path.write_bytes((folder / f"{0:020d}.search").read_bytes())
    assert "does not say what the segment has" in only(folder).problem


def test_broken_small_files(folder: Path) -> None:
    (folder / f"{80:020d}.snapshot").write_bytes(b"xx")
    assert only(folder).path.endswith(".snapshot")
    (folder / f"{80:020d}.snapshot").unlink()
    (folder / f"{0:020d}.txnindex").write_bytes(b"xx")
    assert only(folder).path.endswith(".txnindex")
    (folder / f"{0:020d}.txnindex").unlink()
    (folder / "leader-epoch-checkpoint").write_bytes(b"0\n9\n")
    assert only(folder).path.endswith("leader-epoch-checkpoint")
    (folder / "leader-epoch-checkpoint").unlink()
    (folder / f"{0:020d}.log.cleaned").write_bytes(b"")
    assert only(folder).warning


def test_a_gap_between_segments(folder: Path) -> None:
    (folder / f"{100:020d}.log").write_bytes(batch(100, 2))
    assert "begins behind offset 80" in only(folder).problem
    assert not only(folder).warning
    disk = SystemDisk(str(folder.parent))
    assert [each.warning for each in verify(disk, "t-0", Expected(0, 80))] == [True]
    assert [each.warning for each in verify(disk, "t-0", Expected(0, 102))] == [False]
    # Everything before was deleted.
    assert list(verify(disk, "t-0", Expected(100, 102))) == []


def test_what_the_checkpoint_knows(folder: Path) -> None:
    disk = SystemDisk(str(folder.parent))
    assert list(verify(disk, "t-0", Expected(0, 80))) == []
    assert ["ends at offset 80" in each.problem for each in verify(disk, "t-0", Expected(0, 90))] == [True]
    (folder / f"{0:020d}.log").unlink()
    assert ["begins at offset 40" in each.problem for each in verify(disk, "t-0", Expected(39, 80))] == [True]
    assert list(verify(disk, "t-0", Expected(40, 80))) == []
