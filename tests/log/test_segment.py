from __future__ import annotations

import errno
import struct
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import CorruptLog
from headrace.format.batch import BatchHeader, header_at
from headrace.log.files import OpenFiles
from headrace.log.index import BLOCK_ENTRIES
from headrace.log.interface import AbortedTransaction
from headrace.log.segment import Segment
from headrace.runtime.disk import Buffer, SystemDisk, SystemFile

from .batches import batch

INTERVAL = 400


class Log:
    """A segment, and the list of batches that it should hold."""

    def __init__(self, root: str, base: int = 100) -> None:
        self.disk = SystemDisk(root)
        self.disk.mkdir("t-0")
        self.files = OpenFiles(self.disk, 4)
        self.base = base
        self.segment = Segment.create(self.disk, self.files, "t-0", base, INTERVAL)
        self.batches: list[bytes] = []

    def path(self, suffix: str) -> Path:
        return Path(self.disk.root) / f"t-0/{self.base:020d}{suffix}"

    def heads(self) -> list[BatchHeader]:
        return [header_at(each) for each in self.batches]

    def append(self, *batches: bytes) -> None:
        heads = [header_at(each) for each in batches]
        self.segment.append(batches, [(h.base_offset, h.last_offset, h.size, h.max_timestamp) for h in heads])
        self.batches.extend(batches)

    def reopen(self) -> None:
        self.files.close()
        self.segment = Segment.open(self.disk, self.files, "t-0", self.base, INTERVAL)

    def check(self) -> None:
        """Everything that can be asked, against the list."""
        segment = self.segment
        heads = self.heads()
        assert segment.size == sum(h.size for h in heads)
        assert segment.max_timestamp == max((h.max_timestamp for h in heads), default=-1)
        assert segment.first_timestamp_ms == (heads[0].max_timestamp if heads else -1)
        assert segment.last_offset() == (heads[-1].last_offset if heads else self.base - 1)
        positions = [0]
        for h in heads:
            positions.append(positions[-1] + h.size)
        assert [at for at, _ in segment.headers()] == positions[:-1]
        end = heads[-1].last_offset + 2 if heads else self.base + 2
        for offset in range(self.base, end):
            index = next((i for i, h in enumerate(heads) if h.last_offset >= offset), len(heads))
            assert segment.locate(offset) == positions[index], offset
        for timestamp in {h.max_timestamp + d for h in heads for d in (-1, 0, 1)}:
            index = next((i for i, h in enumerate(heads) if h.max_timestamp >= timestamp), -1)
            assert segment.locate_time(timestamp) == (positions[index] if index >= 0 else None), timestamp
        for position, whole in zip(positions, self.batches, strict=False):
            assert segment.batch_at(position) == whole


# Gap before the batch (as compaction leaves them), records, bytes of a value, timestamp.
shapes = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 4), st.sampled_from([0, 5, 90, 900, 9_000]), st.integers(0, 50)),
    max_size=40,
)


def fill(log: Log, shape: Sequence[tuple[int, int, int, int]], group: int = 3) -> None:
    offset = (log.batches and log.heads()[-1].last_offset + 1) or log.base
    made = []
    for gap, count, size, timestamp in shape:
        made.append(batch(offset + gap, count, size=size, timestamp=timestamp))
        offset += gap + count
    for i in range(0, len(made), group):
        log.append(*made[i : i + group])


@settings(max_examples=60, deadline=None)
@given(shapes, shapes, st.booleans())
def test_against_a_list(
    shape: list[tuple[int, int, int, int]], more: list[tuple[int, int, int, int]], seal: bool
) -> None:
    with TemporaryDirectory() as root:
        log = Log(root)
        fill(log, shape)
        log.check()
        if seal:
            log.segment.seal()
        log.segment.sync_job()()
        log.check()
        log.reopen()
        log.check()
        fill(log, more)
        log.check()
        log.reopen()  # the index files lag behind the log now
        log.check()


@settings(max_examples=60, deadline=None)
@given(shapes.filter(bool), st.data())
def test_a_torn_tail_is_cut(shape: list[tuple[int, int, int, int]], data: st.DataObject) -> None:
    with TemporaryDirectory() as root:
        log = Log(root)
        fill(log, shape)
        synced = data.draw(st.integers(0, len(log.batches)))
        position = sum(map(len, log.batches[:synced]))
        cut = data.draw(st.integers(position, log.segment.size))
        log.segment.sync_job()()  # so the index files know of what is about to be lost
        contents = log.path(".log").read_bytes()
        garbage = data.draw(st.sampled_from([b"", bytes(200), b"\xff" * 100]))
        torn = contents[:cut] + garbage
        log.path(".log").write_bytes(torn)
        # Garbage may be what stood there: the zeros at the end of a record without headers.
        while not torn.startswith(b"".join(log.batches)):
            log.batches.pop()
        log.reopen()
        seen: list[BatchHeader] = []
        whole = sum(map(len, log.batches))
        if synced:
            # How a partition finds its recovery point.
            assert log.segment.locate(header_at(log.batches[synced - 1]).last_offset + 1) >= position
        assert log.segment.recover(position, seen.append) == cut + len(garbage) - whole
        assert seen == log.heads()[synced:]
        assert log.path(".log").stat().st_size == whole
        log.check()
        fill(log, shape)
        log.check()
        log.segment.sync_job()()
        log.reopen()
        log.check()


@settings(max_examples=60, deadline=None)
@given(shapes.filter(bool), st.data())
def test_a_flipped_bit_cuts_there(shape: list[tuple[int, int, int, int]], data: st.DataObject) -> None:
    with TemporaryDirectory() as root:
        log = Log(root)
        fill(log, shape)
        at = data.draw(st.integers(0, log.segment.size - 1))
        contents = bytearray(log.path(".log").read_bytes())
        contents[at] ^= 1 << data.draw(st.integers(0, 7))
        log.path(".log").write_bytes(contents)
        good = 0
        while sum(map(len, log.batches[: good + 1])) <= at:
            good += 1
        log.reopen()
        seen: list[BatchHeader] = []
        log.segment.recover(0, seen.append)
        # Base offset and leader epoch are not under the checksum: such a flip may pass, if the offsets still grow.
        assert seen[:good] == log.heads()[:good]
        if at - sum(map(len, log.batches[:good])) >= 16:
            assert len(seen) == good


@settings(max_examples=60, deadline=None)
@given(shapes.filter(bool), st.data())
def test_broken_index_files_are_made_anew(shape: list[tuple[int, int, int, int]], data: st.DataObject) -> None:
    with TemporaryDirectory() as root:
        log = Log(root)
        fill(log, shape)
        log.segment.sync_job()()
        for suffix in (".index", ".timeindex"):
            path = log.path(suffix)
            contents = bytearray(path.read_bytes())
            damage = data.draw(
                st.sampled_from(["none", "missing", "cut", "zeros", "all zeros", "last", "odd", "later"])
            )
            entry = 8 if suffix == ".index" else 12
            entries = len(contents) // entry
            if damage == "missing":
                path.unlink()
                continue
            if damage == "cut":
                del contents[data.draw(st.integers(0, entries)) * entry :]
            elif damage == "zeros" and entries:
                first = data.draw(st.integers(0, entries - 1)) * entry
                contents[first : first + entry] = bytes(entry)
            elif damage == "all zeros":
                contents = bytearray(len(contents))
            elif damage == "last" and entries:
                contents[-1] ^= 1
            elif damage == "later" and suffix == ".index" and entries:
                # An entry that means another batch: the file was cut and written again, its index was not.
                changed = data.draw(st.integers(0, entries - 1))
                whole = data.draw(st.integers(0, len(log.batches) - 1))
                place = sum(map(len, log.batches[:whole]))
                contents[changed * 8 + 4 : changed * 8 + 8] = place.to_bytes(4, "big")
            elif damage == "odd":
                contents += b"x"
            path.write_bytes(contents)
        log.reopen()
        log.check()
        fill(log, shape)
        log.check()


@settings(max_examples=40, deadline=None)
@given(shapes.filter(bool), st.data())
def test_truncate(shape: list[tuple[int, int, int, int]], data: st.DataObject) -> None:
    with TemporaryDirectory() as root:
        log = Log(root)
        fill(log, shape)
        if data.draw(st.booleans()):
            log.segment.sync_job()()
        if data.draw(st.booleans()):
            log.reopen()
        keep = data.draw(st.integers(0, len(log.batches)))
        log.segment.truncate_to(sum(map(len, log.batches[:keep])))
        del log.batches[keep:]
        log.check()
        fill(log, data.draw(shapes))
        log.check()
        log.segment.sync_job()()
        log.reopen()
        log.check()


def test_what_was_synced_and_is_gone_is_corruption(tmp_path: Path) -> None:
    log = Log(str(tmp_path))
    fill(log, [(0, 1, 900, 5)] * 5)
    size = log.segment.size
    contents = bytearray(log.path(".log").read_bytes())
    log.path(".log").write_bytes(contents[: size - 10])
    log.reopen()
    with pytest.raises(CorruptLog, match="had been synced"):
        log.segment.recover(size, lambda header: None)
    contents[size // 2 : size // 2 + 1000] = bytes(1000)
    log.path(".log").write_bytes(contents)
    log.reopen()
    with pytest.raises(CorruptLog, match="had been synced"):
        log.segment.recover(size, lambda header: None)
    assert log.path(".log").stat().st_size == size
    with pytest.raises(CorruptLog, match="before offset 104"):
        log.segment.locate(104)
    with pytest.raises(CorruptLog):
        log.segment.batch_at(size // 2 + 100)


def test_a_big_batch_is_checked_in_parts(tmp_path: Path) -> None:
    log = Log(str(tmp_path))
    log.append(batch(100, 1), batch(101, 1, size=3_000_000), batch(102, 1))
    log.reopen()
    seen: list[BatchHeader] = []
    assert log.segment.recover(0, seen.append) == 0
    assert len(seen) == 3
    contents = bytearray(log.path(".log").read_bytes())
    contents[2_500_000] ^= 1
    log.path(".log").write_bytes(contents)
    log.reopen()
    assert log.segment.recover(0, seen.append) > 3_000_000
    assert len(seen) == 4


def test_a_failed_append_changes_nothing(tmp_path: Path) -> None:
    log = Log(str(tmp_path))
    fill(log, [(0, 1, 100, 5)] * 5)
    file = log.files.get("t-0/00000000000000000100.log")
    real = type(file).write

    def full(self: object, position: int, buffers: Sequence[Buffer]) -> None:
        real(file, position, [b"garbage"])  # type: ignore[arg-type]
        raise OSError(errno.ENOSPC, "full")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(file), "write", full)
        with pytest.raises(OSError, match="full"):
            fill(log, [(0, 1, 100, 9)])
    log.check()
    fill(log, [(0, 1, 100, 7)] * 5)
    log.check()


def test_aborted_transactions_survive(tmp_path: Path) -> None:
    log = Log(str(tmp_path))
    fill(log, [(0, 10, 10, 5)] * 5)
    assert not log.path(".txnindex").exists()
    log.segment.sync_job()()
    assert not log.path(".txnindex").exists()
    log.segment.add_aborted(1, 95, 119, 110)
    log.segment.add_aborted(2, 110, 129, 130)
    log.segment.add_aborted(2, 110, 129, 130)
    log.segment.sync_job()()
    log.reopen()
    assert log.segment.aborted(0, 100) == [AbortedTransaction(1, 95, 119)]
    assert log.segment.aborted(115, 116) == [AbortedTransaction(1, 95, 119), AbortedTransaction(2, 110, 129)]
    assert log.segment.aborted(120, 200) == [AbortedTransaction(2, 110, 129)]
    assert log.segment.aborted(130, 200) == []
    log.segment.truncate_to(log.segment.locate(120))
    assert log.segment.aborted(0, 200) == [AbortedTransaction(1, 95, 119)]
    log.reopen()
    assert log.segment.aborted(0, 200) == [AbortedTransaction(1, 95, 119)]
    log.path(".txnindex").write_bytes(b"x" * 35)
    log.reopen()
    with pytest.raises(CorruptLog, match="35 bytes"):
        log.segment.aborted(0, 200)


def test_delete_removes_all_files(tmp_path: Path) -> None:
    log = Log(str(tmp_path))
    fill(log, [(0, 10, 10, 5)] * 5)
    log.segment.add_aborted(1, 95, 119, 120)
    assert not log.segment.names_synced
    log.segment.sync_job()()
    assert log.segment.names_synced
    log.path(".snapshot").write_bytes(b"")
    assert len(log.disk.listdir("t-0")) == 5
    log.segment.delete()
    assert log.disk.listdir("t-0") == []
    assert len(log.files) == 0


def test_a_sync_that_is_under_way_leaves_nothing_of_what_was_deleted(tmp_path: Path) -> None:
    log = Log(str(tmp_path))
    fill(log, [(0, 10, 10, 5)] * 5)
    log.segment.add_aborted(1, 95, 119, 120)
    sync = log.segment.sync_job()
    log.segment.delete()
    sync()
    assert log.disk.listdir("t-0") == []


def test_a_sync_of_what_was_deleted_leaves_its_successor_alone(tmp_path: Path) -> None:
    log = Log(str(tmp_path))
    fill(log, [(0, 10, 10, 5)] * 5)
    sync = log.segment.sync_job()
    log.segment.delete()
    log.segment = Segment.create(log.disk, log.files, "t-0", log.base, INTERVAL)
    log.batches.clear()
    fill(log, [(0, 3, 900, 7)] * 9)
    sync()
    log.check()
    log.segment.sync_job()()
    log.reopen()
    log.check()


def test_a_sync_of_what_was_deleted_removes_no_successor_that_begins_meanwhile(tmp_path: Path) -> None:
    """The sync runs in another thread, and has just seen that there is none."""
    log = Log(str(tmp_path))
    fill(log, [(0, 10, 10, 5)] * 5)
    sync = log.segment.sync_job()
    log.segment.delete()
    exists = log.disk.exists

    def begin_meanwhile(path: str) -> bool:
        found = exists(path)
        log.disk.exists = exists  # type: ignore[method-assign]
        log.segment = Segment.create(log.disk, log.files, "t-0", log.base, INTERVAL)
        log.batches.clear()
        fill(log, [(0, 3, 900, 7)] * 9)
        return found

    log.disk.exists = begin_meanwhile  # type: ignore[method-assign]
    sync()
    log.check()
    log.segment.sync_job()()
    log.reopen()
    log.check()


def test_a_segment_that_is_cut_grows_again(tmp_path: Path) -> None:
    """Those behind it are gone: it keeps its indexes in memory, which a sync in another thread would drop."""
    log = Log(str(tmp_path))
    fill(log, [(0, 10, 10, 5)] * 5)
    log.segment.seal()
    sync = log.segment.sync_job()
    log.segment.truncate_to(log.segment.size)
    sync()
    log.segment.sync_job()()
    assert log.segment._hints.ready
    fill(log, [(0, 10, 10, 5)] * 5)
    log.check()


def test_a_range_is_pinned(tmp_path: Path) -> None:
    log = Log(str(tmp_path))
    fill(log, [(0, 10, 10, 5)] * 5)
    part = log.segment.range(0, 1 << 30)
    assert part.length == log.segment.size
    log.segment.close()
    assert part.file.read(part.position, part.length) == b"".join(log.batches) == log.segment.read(0, 1 << 30)
    part.file.unpin()
    with pytest.raises(OSError, match="descriptor"):
        part.file.read(0, 1)


def test_a_sealed_segment_keeps_no_index_in_memory(tmp_path: Path) -> None:
    log = Log(str(tmp_path))
    fill(log, [(0, 1, 90, i) for i in range(3_000)], group=100)
    log.segment.seal()
    log.segment.sync_job()()
    assert not log.segment._hints._index.in_memory
    for i in range(0, 3_000, 7):
        assert log.segment.locate(100 + i) == i * len(log.batches[0])
        position = log.segment.locate_time(i)
        assert position is not None
        assert header_at(log.segment.batch_at(position)).max_timestamp == i
    assert not log.segment._hints._index.in_memory


def test_a_look_up_in_a_closed_segment_reads_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block of the index behind a few halvings, and a short walk: neither all of an index nor much of a log."""
    log = Log(str(tmp_path))
    count = 9_000
    fill(log, [(0, 1, 90, i) for i in range(count)], group=100)
    log.segment.seal()
    log.segment.sync_job()()
    entries = log.path(".index").stat().st_size // 8
    assert entries > 8 * BLOCK_ENTRIES
    reads: list[tuple[str, int]] = []
    read = SystemFile.read

    def counted(self: SystemFile, position: int, length: int) -> bytes:
        found = read(self, position, length)
        reads.append((self.path.rpartition(".")[2], len(found)))
        return found

    monkeypatch.setattr(SystemFile, "read", counted)
    size = len(log.batches[0])
    for i in (*range(0, count, 97), count - 1):
        reads.clear()
        assert log.segment.locate(100 + i) == i * size
        in_index = [length for kind, length in reads if kind == "index"]
        assert len(in_index) <= (entries // BLOCK_ENTRIES).bit_length() + 1
        assert sum(in_index[:-1]) == 8 * len(in_index[:-1])
        assert max(in_index, default=0) <= 8 * BLOCK_ENTRIES
        # The walk begins at an entry that is at most an interval, and a batch, away.
        assert [kind for kind, _ in reads].count("log") <= 1
    assert not log.segment._hints._index.in_memory


def test_an_index_entry_that_means_another_batch_is_found_out(tmp_path: Path) -> None:
    log = Log(str(tmp_path))
    fill(log, [(0, 1, 90, i) for i in range(200)], group=100)
    log.segment.seal()
    log.segment.sync_job()()
    size = len(log.batches[0])
    contents = bytearray(log.path(".index").read_bytes())
    relative, position = struct.unpack_from(">II", contents, 10 * 8)
    # Still in order, and a batch does stand there, so only its offset can tell.
    struct.pack_into(">I", contents, 10 * 8 + 4, position + size)
    log.path(".index").write_bytes(contents)
    log.reopen()
    assert log.segment.locate(100 + relative) == position
    log.check()


def test_room_is_asked_for_ahead_and_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.log.segment.RESERVE_FROM", 4_096)
    monkeypatch.setattr("headrace.log.segment.RESERVE_BYTES", 1 << 20)
    log = Log(str(tmp_path))
    small, large = batch(100, size=100), batch(101, size=5_000)
    log.segment.append_one(small, 100, len(small), 1)
    assert log.path(".log").stat().st_blocks * 512 < 1 << 20
    log.segment.append_one(large, 101, len(large), 1)
    found = log.path(".log").stat()
    assert found.st_size == log.segment.size == len(small) + len(large)
    assert found.st_blocks * 512 >= 1 << 20
    # Another life does not know of it, and gives it back all the same.
    log.reopen()
    log.segment.seal()
    found = log.path(".log").stat()
    assert found.st_size == len(small) + len(large)
    assert found.st_blocks * 512 < 1 << 20
    log.files.close()


def test_a_disk_that_has_no_room_to_reserve_is_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.log.segment.RESERVE_FROM", 0)
    monkeypatch.setattr("headrace.log.segment.RESERVE_BYTES", 1 << 60)
    log = Log(str(tmp_path))
    only = batch(100, 1)
    log.segment.append_one(only, 100, len(only), 1)
    assert log.path(".log").read_bytes() == only
    log.files.close()
