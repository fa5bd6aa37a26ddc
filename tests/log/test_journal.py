"""The journal's files: filled with zeros ahead of their use, reused, never used again where a write failed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.ground.disk import SystemDisk
from headrace.log import journal as journal_module
from headrace.log.journal import FOLDER, LOOKS, SPARE_FILES, Journal, read_frames

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
            journal.prepared(spare)
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
    assert [frame.sequence for frame in read_frames(disk, 1)] == [1]
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
    assert [frame.sequence for frame in read_frames(disk, 1)] == [1, 2, 3, 4]
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
    assert [frame.sequence for frame in read_frames(disk, since)] == [since]
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
