"""Readers that go on: what they get, whatever is known of their places, and how seldom those are looked up."""

from __future__ import annotations

import errno
import gc
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.format.batch import batches_in
from headrace.log import index
from headrace.log.files import OpenFiles
from headrace.log.hints import Hints
from headrace.log.interface import Chunk, TopicSettings
from headrace.log.places import Place, Places
from headrace.log.segment import Segment
from headrace.log.segments import Segments
from headrace.runtime.disk import FileRange, SystemDisk, SystemFile

from .batches import batch


class Stored:
    """Batches in segments, and the list of them."""

    def __init__(self, root: str, sizes: Iterable[int], *, segment_bytes: int, places: Places | None = None) -> None:
        disk = SystemDisk(root)
        self.settings = TopicSettings(segment_bytes=segment_bytes, index_interval_bytes=400)
        self.places = Places() if places is None else places
        self.segments = Segments(disk, OpenFiles(disk, 8), "t-0", bytes(16), self.places)
        self.batches = []
        for size in sizes:
            self.store(size)
        # The indexes of closed segments leave memory.
        for job in self.segments.sync_jobs():
            job()
        self.looked_up = 0

    def store(self, size: int) -> None:
        offset, count = self.end, 1 + size % 3
        self.batches.append(batch(offset, count, size=size))
        tail = (offset, offset + count - 1, self.batches[-1], 1_000)
        self.segments.store([tail], self.settings, 0, lambda base: None)

    @property
    def end(self) -> int:
        return self.segments.end

    def read(self, offset: int, upto: int, max_bytes: int) -> Chunk:
        for _ in range(3):
            chunk = self.segments.read(offset, upto, max_bytes, True)
            if chunk.cold is None:
                return chunk
            chunk.cold()
            self.looked_up += 1
        raise AssertionError(f"a read at {offset} stays cold")

    def follow(self, upto: int, max_bytes: int, offset: int = 0) -> Iterator[bytes]:
        """The batches that a reader gets, one read after the other."""
        while offset < upto:
            chunk = self.read(offset, upto, max_bytes)
            [part] = chunk.parts
            assert isinstance(part, FileRange)
            data = part.read()
            part.release()
            assert len(data) == chunk.size <= chunk.available
            got = [(header, data[at : at + header.size]) for at, header in batches_in(data)]
            assert chunk.size <= max_bytes or len(got) == 1
            assert all(header.last_offset < chunk.before for header, _ in got)
            offset = got[-1][0].last_offset + 1
            yield from (each for _, each in got)
            yield b""  # a turn of the others


@settings(max_examples=80, deadline=None)
@given(
    sizes=st.lists(st.sampled_from([0, 5, 90, 900, 9_000]), min_size=1, max_size=60),
    segment_bytes=st.sampled_from([1_000, 5_000, 30_000, 1 << 20]),
    reads=st.lists(st.sampled_from([1, 300, 2_000, 10_000, 1 << 20]), min_size=1, max_size=4),
    upto=st.floats(0, 1),
    kept=st.sampled_from([2, 3, 1_000]),
    ahead=st.sampled_from([1, 3, 2_048]),
    resident=st.booleans(),
)
def test_readers_get_what_is_there_whatever_is_known_of_their_places(
    sizes: list[int], segment_bytes: int, reads: list[int], upto: float, kept: int, ahead: int, resident: bool
) -> None:
    with TemporaryDirectory() as root, pytest.MonkeyPatch.context() as patch:
        patch.setattr(index, "AHEAD_ENTRIES", ahead)
        if not resident:
            patch.setattr(SystemFile, "read_now", lambda *_: b"")
        stored = Stored(root, sizes, segment_bytes=segment_bytes, places=Places(kept))
        # Readers stop between two batches.
        ends = [0]
        for size in sizes:
            ends.append(ends[-1] + 1 + size % 3)
        count = round(upto * len(sizes))
        readers = [stored.follow(ends[count], max_bytes) for max_bytes in reads]
        found: list[list[bytes]] = [[] for _ in readers]
        live = list(zip(readers, found, strict=True))
        while live:
            live = [(reader, into) for reader, into in live if _turn(reader, into)]
        assert found == [stored.batches[:count]] * len(reads)


def _turn(reader: Iterator[bytes], into: list[bytes]) -> bool:
    for each in reader:
        if not each:
            return True
        into.append(each)
    return False


def test_a_reader_that_goes_on_looks_its_place_up_once_a_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = Stored(str(tmp_path), [900] * 2_000, segment_bytes=150_000)
    assert len(stored.segments.all) > 10
    located: list[int] = []
    locate = Hints.locate
    monkeypatch.setattr(
        Hints, "locate", lambda self, size, offset: located.append(offset) or locate(self, size, offset)
    )
    assert [each for each in stored.follow(stored.end, 10_000) if each] == stored.batches
    assert len(located) == len(stored.segments.all)
    assert stored.looked_up == len(stored.segments.all) - 1
    # Nothing is left of the way: a place in each segment where it ended, and the one before.
    assert len(stored.places) <= 2 * len(stored.segments.all)


def test_a_reader_takes_as_much_of_an_index_along_as_it_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "AHEAD_ENTRIES", 50)
    stored = Stored(str(tmp_path), [900] * 1_000 + [9], segment_bytes=900_000)
    entries = len(stored.segments.all[0]._hints._index)
    assert not stored.segments.all[0]._hints._index.in_memory
    assert [each for each in stored.follow(stored.end, 10_000) if each] == stored.batches
    assert entries // 50 <= stored.looked_up <= entries // 50 + entries // 250 + 2


def test_batches_above_the_limit_come_one_by_one_and_are_not_looked_up(tmp_path: Path) -> None:
    stored = Stored(str(tmp_path), [30_000] * 40 + [9], segment_bytes=1_000_000)
    assert [each for each in stored.follow(stored.end, 100) if each] == stored.batches
    assert stored.looked_up == len(stored.segments.all) - 1


def test_a_place_stays_until_the_reader_is_past_the_next(tmp_path: Path) -> None:
    """A read that is repeated, because another partition of its request was cold, finds it again."""
    stored = Stored(str(tmp_path), [900] * 300, segment_bytes=100_000)
    first = next(iter(stored.follow(stored.end, 10_000)))
    assert first
    known = stored.looked_up
    for _ in range(3):
        stored.read(0, stored.end, 10_000).parts[0].file.unpin()  # type: ignore[union-attr]
    assert stored.looked_up == known


def test_places_are_bounded() -> None:
    places = Places(3)
    for offset in range(10):
        places.keep(5, offset, Place(offset * 100, 100))
    assert len(places) == 3
    assert places.get(5, 6) is None
    assert places.get(5, 7) == Place(700, 100)
    assert places.get(6, 7) is None


def test_a_place_keeps_no_segment(tmp_path: Path) -> None:
    stored = Stored(str(tmp_path), [900] * 300, segment_bytes=100_000)
    reader = stored.follow(stored.end, 10_000)
    assert next(reader)
    reader.close()
    dropped = id(stored.segments.all[0])
    stored.segments.drop(stored.segments.all[:1])
    gc.collect()
    assert len(stored.places) > 0
    # By identity: what other tests left behind may have a segment of the same path.
    assert not any(isinstance(each, Segment) and id(each) == dropped for each in gc.get_objects())


def test_a_place_in_a_segment_that_is_cut_is_looked_up_again(tmp_path: Path) -> None:
    """What stood there may have been shorter."""
    stored = Stored(str(tmp_path), [90] * 40, segment_bytes=4_000)
    assert len(stored.segments.all) > 1
    # Readable up to the tenth batch, in a closed segment.
    assert [each for each in stored.follow(10, 100_000) if each] == stored.batches[:10]
    stored.segments.cut_back(10)
    del stored.batches[10:]
    stored.store(900)
    assert [each for each in stored.follow(stored.end, 300, 10) if each] == stored.batches[10:]


def test_a_file_opened_off_the_loop_while_compaction_renames_is_not_taken_for_the_new_one(tmp_path: Path) -> None:
    stored = Stored(str(tmp_path), [900] * 40, segment_bytes=4_000)
    old = stored.segments.all[0]
    folder = tmp_path / "t-0"
    new = batch(old.base, 1, size=5)
    (folder / "new").write_bytes(new)
    with ThreadPoolExecutor(1) as pool:
        looked_up = stored.segments.read(0, stored.end, 10_000, True).cold
        assert looked_up is not None

        def rename() -> None:
            # The segment has been given up by now, and its file still has the name.
            pool.submit(looked_up).result()
            (folder / "new").rename(tmp_path / old.path)

        stored.segments.replace([old.base], [old.base], rename, 400)
        cold = stored.segments.read(0, stored.end, 10_000, True).cold
        assert cold is not None
        pool.submit(cold).result()
    [part] = stored.segments.read(0, stored.segments.all[1].base, 10_000, True).parts
    assert isinstance(part, FileRange)
    assert part.read() == new
    part.release()


def test_a_file_opened_off_the_loop_while_it_is_removed_is_not_taken_for_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SystemDisk(str(tmp_path))
    files = OpenFiles(disk, 8)
    Segment.create(disk, files, "", 0, 400).append([old := batch(0, 1, size=900)], [(0, 0, len(old), 1_000)])
    remove = SystemDisk.remove
    with ThreadPoolExecutor(1) as pool:

        def remove_late(self: SystemDisk, path: str) -> None:
            if path.endswith(".log"):
                pool.submit(files.get, path).result()
            remove(self, path)

        monkeypatch.setattr(SystemDisk, "remove", remove_late)
        Segment.open(disk, files, "", 0, 400).delete()
        new = Segment.create(disk, files, "", 0, 400)
        new.append([young := batch(0, 1, size=5)], [(0, 0, len(young), 1_000)])
        assert pool.submit(new.place, 0).result() == Place(0, len(young))
    files.close()


def test_a_read_that_shall_not_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(bytes(range(100)))
    file = SystemDisk(str(tmp_path)).open("file")
    assert file.read_now(10, 20) == bytes(range(10, 30))
    assert file.read_now(90, 20) == bytes(range(90, 100))

    def preadv(*_: object) -> int:
        raise answer

    monkeypatch.setattr(os, "preadv", preadv)
    answer: OSError = BlockingIOError(errno.EAGAIN, "")
    assert file.read_now(10, 20) == b""
    assert not file.resident(10, 20)
    answer = OSError(errno.EOPNOTSUPP, "")  # a file system in memory
    assert file.read_now(10, 20) == bytes(range(10, 30))
    assert file.resident(10, 20)
    answer = OSError(errno.EIO, "")
    with pytest.raises(OSError, match="5"):
        file.read_now(10, 20)
    file.close()
