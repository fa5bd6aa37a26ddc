"""The journal's files: filled with zeros ahead of their use, reused, never used again where a write failed."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from headrace.log import journal as journal_module
from headrace.log.frames import FRAME
from headrace.log.journal import FOLDER, LOOKS, SPARE_FILES, Journal, read_frames
from headrace.runtime.disk import SystemDisk, SystemFile

SIZE = 1 << 16


@pytest.fixture
def disk(tmp_path: Path) -> SystemDisk:
    made = SystemDisk(str(tmp_path))
    made.mkdir(FOLDER)
    return made


def put(journal: Journal, size: int = 100) -> str:
    """Write one frame; the file that it went to."""
    frame = journal.place([b"x" * size], size, 1)
    frame.write()
    journal.acknowledged = frame.sequence
    return frame._file.path


def prepare(journal: Journal) -> bool:
    """Look as often as upkeep would, and prepare what there is to prepare."""
    for _ in range(LOOKS + 1):
        spare = journal.unprepared()
        if spare is not None:
            journal.prepare(spare)
            journal.use_prepared(spare)
            return True
    return False


def test_without_traffic_nothing_is_prepared(disk: SystemDisk) -> None:
    journal = Journal(disk, SIZE, 1)
    assert not prepare(journal)
    put(journal)
    assert not prepare(journal)
    assert disk.listdir(FOLDER) == ["00000000.journal"]
    journal.close()


def test_the_first_file_begins_with_blocks_that_were_written(disk: SystemDisk) -> None:
    journal = Journal(disk, SIZE, 1)
    frame = journal.place([b"x"], 1, 1)
    frame.write()
    assert frame._file.written == SIZE // 16
    assert [frame.sequence for frame in read_frames(disk, 1).frames] == [1]
    journal.close()


def test_frames_move_to_a_file_that_was_written_before(disk: SystemDisk, tmp_path: Path) -> None:
    journal = Journal(disk, SIZE, 1)
    first = put(journal, 5_000)
    assert prepare(journal)
    second = put(journal)
    assert second != first
    blocks = os.stat(tmp_path / second).st_blocks * 512
    assert blocks >= SIZE
    assert (tmp_path / second).read_bytes()[200:] == bytes(SIZE - 200)
    # Another is prepared for later, but the one that is written through stays in use.
    put(journal, 5_000)
    assert prepare(journal)
    assert put(journal) == second
    assert not prepare(journal)
    assert [frame.sequence for frame in read_frames(disk, 1).frames] == [1, 2, 3, 4]
    journal.close()


def test_a_file_that_is_used_again_is_filled_up_first(disk: SystemDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "ZEROS", bytes(4_096))
    journal = Journal(disk, SIZE, 1)
    first = put(journal, 5_000)
    assert prepare(journal)
    since = journal.next_sequence
    second = put(journal, 5_000)
    assert journal.retire(since) == []
    # The first one is spare again, and written only at its beginning.
    assert prepare(journal)
    assert put(journal) == second
    since = journal.switch()
    assert put(journal, 300) == first
    assert journal.retire(since) == []
    # What is left of its former life is told by its lower numbers.
    assert [frame.sequence for frame in read_frames(disk, since).frames] == [since]
    assert disk.listdir(FOLDER) == sorted(path.rpartition("/")[2] for path in (first, second))
    journal.close()


def test_files_that_fill_quickly_are_not_prepared(disk: SystemDisk) -> None:
    journal = Journal(disk, SIZE, 1)
    for _ in range(20):
        put(journal, SIZE // 2)
        assert journal.unprepared() is None
    journal.close()


def test_a_file_whose_write_failed_is_never_used_again(disk: SystemDisk) -> None:
    journal = Journal(disk, SIZE, 1)
    failed = put(journal)
    journal.abandon()
    other = put(journal)
    assert other != failed
    since = journal.switch()
    assert journal.retire(since) == [failed]
    assert put(journal) == other
    journal.close()


def test_where_no_file_can_be_made_the_one_before_is_written_on(
    disk: SystemDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk was not known to be one when the journal left its file."""

    def full(file: SystemFile, size: int) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    journal = Journal(disk, SIZE, 1)
    first = put(journal)
    since = journal.switch()
    with monkeypatch.context() as patched:
        patched.setattr(SystemFile, "allocate", full)
        with pytest.raises(OSError, match="no space left"):
            put(journal)
        journal.abandon()
        assert put(journal) == first
        # It has no room for this.
        with pytest.raises(OSError, match="no space left"):
            put(journal, SIZE - 150)
        journal.abandon()
        assert put(journal) == first
    assert journal.retire(since) == []
    assert disk.listdir(FOLDER) == ["00000000.journal"]
    assert [frame.sequence for frame in read_frames(disk, 1).frames] == [1, 3, 5]
    assert put(journal, SIZE - 150) != first
    journal.close()


def test_a_write_that_fails_while_another_file_is_prepared(disk: SystemDisk) -> None:
    journal = Journal(disk, SIZE, 1)
    put(journal, 5_000)
    under_way = journal.place([b"y"], 1, 1)
    assert prepare(journal)
    journal.abandon()
    put(journal)
    assert journal.retire(journal.switch()) == [under_way._file.path]
    journal.close()


def test_not_more_files_are_kept_than_needed(disk: SystemDisk) -> None:
    journal = Journal(disk, SIZE, 1)
    paths = {put(journal, SIZE - 1_000) for _ in range(6)}
    removed = journal.retire(journal.switch())
    assert len(removed) == len(paths) - SPARE_FILES
    journal.close()


def test_what_could_not_be_prepared_is_given_up(disk: SystemDisk) -> None:
    journal = Journal(disk, SIZE, 1)
    put(journal, 5_000)
    spare = None
    while spare is None:
        spare = journal.unprepared()
    path = journal.give_up(spare)
    assert path != put(journal)
    assert prepare(journal)
    journal.close()


def damage(path: Path, position: int) -> None:
    contents = bytearray(path.read_bytes())
    contents[position] ^= 1
    path.write_bytes(contents)


@pytest.mark.parametrize("place", ["magic", "sequence", "length", "payload"])
@pytest.mark.parametrize("frame", [1, 3, 5])
def test_a_flipped_bit_before_the_last_frame_is_noticed(
    disk: SystemDisk, tmp_path: Path, frame: int, place: str
) -> None:
    journal = Journal(disk, SIZE, 1)
    path = tmp_path / {put(journal) for _ in range(6)}.pop()
    journal.close()
    start = (frame - 1) * (FRAME.size + 100)
    damage(path, start + {"magic": 0, "sequence": 15, "length": 31, "payload": FRAME.size + 50}[place])
    found = read_frames(disk, 1)
    assert found.lost == [frame]
    # Behind a header that cannot be read nobody knows where the next frame begins, and what looks like one is not used.
    readable = [1, 2, 3, 4, 5, 6] if place == "payload" else range(1, frame)
    assert [each.sequence for each in found.frames] == [number for number in readable if number != frame]


@pytest.mark.parametrize("upto", [10, FRAME.size + 10, FRAME.size + 99])
def test_a_torn_frame_is_no_damage(disk: SystemDisk, tmp_path: Path, upto: int) -> None:
    journal = Journal(disk, SIZE, 1)
    path = tmp_path / {put(journal) for _ in range(3)}.pop()
    journal.close()
    whole = path.read_bytes()
    torn = 2 * (FRAME.size + 100) + upto
    path.write_bytes(whole[:torn] + bytes(len(whole) - torn))
    found = read_frames(disk, 1)
    assert ([each.sequence for each in found.frames], found.lost) == ([1, 2], [])


def test_a_lost_file_of_the_journal_is_noticed(disk: SystemDisk, tmp_path: Path) -> None:
    journal = Journal(disk, SIZE, 1)
    paths = []
    for _ in range(3):
        paths += [put(journal), put(journal)]
        journal.switch()
    journal.close()
    (tmp_path / paths[2]).unlink()
    found = read_frames(disk, 1)
    assert ([each.sequence for each in found.frames], found.lost) == ([1, 2, 5, 6], [4])


def test_frames_of_a_former_life_are_no_damage(disk: SystemDisk, tmp_path: Path) -> None:
    """A file that is used again has whole frames behind the torn one: older ones."""
    journal = Journal(disk, SIZE, 1)
    path = tmp_path / {put(journal) for _ in range(6)}.pop()
    since = journal.switch()
    journal.retire(since)
    put(journal)
    put(journal, 130)
    journal.close()
    found = read_frames(disk, since)
    assert ([each.sequence for each in found.frames], found.lost) == ([7, 8], [])
    damage(path, FRAME.size + 100 + FRAME.size)
    found = read_frames(disk, since)
    assert ([each.sequence for each in found.frames], found.lost) == ([7], [])


def test_a_message_that_looks_like_a_frame_is_not_taken_for_one(disk: SystemDisk, tmp_path: Path) -> None:
    forger = Journal(disk, SIZE, 50)
    forger.acknowledged = 49
    forged = (tmp_path / put(forger)).read_bytes()[: FRAME.size + 100]
    forger.close()
    (tmp_path / FOLDER / "00000000.journal").unlink()
    journal = Journal(disk, SIZE, 1)
    put(journal)
    frame = journal.place([b"x", forged, forged], 2 * len(forged) + 1, 1)
    frame.write()
    journal.close()
    assert [each.sequence for each in read_frames(disk, 1).frames] == [1, 2]
    damage(tmp_path / FOLDER / "00000000.journal", 2 * FRAME.size + 100)
    assert [each.sequence for each in read_frames(disk, 1).frames] == [1]
