"""Large work for the device in pieces: what is removed has no name at once, and readers keep what they have open."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest
from tests.waiting import wait_until

from headrace.runtime import disk as disk_module
from headrace.runtime import gradual
from headrace.runtime.disk import SystemDisk

PIECE = 4_096


@pytest.fixture
def cuts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes to which files were cut, with small pieces and short pauses."""
    # What other tests have removed must not be counted.
    wait_until(idle)
    found: list[int] = []
    truncate = os.ftruncate

    def cut(fd: int, size: int) -> None:
        found.append(size)
        truncate(fd, size)

    monkeypatch.setattr(gradual.os, "ftruncate", cut)
    monkeypatch.setattr(gradual, "FREE_BYTES", PIECE)
    monkeypatch.setattr(gradual, "FREE_PAUSE_S", 0.0)
    monkeypatch.setattr(gradual, "READ_PAUSE_S", 0.01)
    monkeypatch.setattr(disk_module, "LARGE_BYTES", 2 * PIECE)
    return found


def idle() -> bool:
    return not any(thread.name == "headrace-reclaim" for thread in threading.enumerate())


def test_a_large_file_goes_piece_by_piece(tmp_path: Path, cuts: list[int]) -> None:
    disk = SystemDisk(str(tmp_path))
    (tmp_path / "large").write_bytes(bytes(3 * PIECE + 1))
    (tmp_path / "small").write_bytes(bytes(PIECE))
    disk.remove("large")
    disk.remove("small")
    assert os.listdir(tmp_path) == []
    wait_until(idle)
    assert cuts == [2 * PIECE + 1, PIECE + 1, 1, 0]
    disk.remove("large")


def test_a_folder_goes_at_once_and_its_room_follows(tmp_path: Path, cuts: list[int]) -> None:
    disk = SystemDisk(str(tmp_path))
    inner = tmp_path / "topic" / "inner"
    inner.mkdir(parents=True)
    for name in ("a", "b"):
        (inner / name).write_bytes(bytes(2 * PIECE))
    (tmp_path / "topic" / "small").write_bytes(b"x")
    disk.remove_tree("topic")
    assert os.listdir(tmp_path) == []
    wait_until(idle)
    assert cuts == [PIECE, 0] * 2


def test_whoever_has_it_open_reads_it_to_the_end(tmp_path: Path, cuts: list[int]) -> None:
    disk = SystemDisk(str(tmp_path))
    contents = os.urandom(5 * PIECE)
    (tmp_path / "large").write_bytes(contents)
    reader = disk.open("large")
    disk.remove("large")
    time.sleep(0.05)
    assert cuts == []
    assert reader.read(0, len(contents)) == contents
    reader.close()
    wait_until(lambda: cuts and cuts[-1] == 0)


def test_a_reader_that_never_ends_keeps_nobody_waiting(
    tmp_path: Path, cuts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gradual, "READ_LOOKS", 2)
    disk = SystemDisk(str(tmp_path))
    (tmp_path / "large").write_bytes(bytes(3 * PIECE))
    reader = disk.open("large")
    disk.remove("large")
    wait_until(idle)
    assert cuts == []
    reader.close()


def test_many_at_once_do_not_hold_the_descriptors_of_the_process(tmp_path: Path, cuts: list[int]) -> None:
    disk = SystemDisk(str(tmp_path))
    for number in range(3 * gradual.WAITING_MAX):
        (tmp_path / str(number)).write_bytes(bytes(3 * PIECE))
    before = len(os.listdir("/proc/self/fd"))
    with open(tmp_path / "0", "rb"):
        for number in range(3 * gradual.WAITING_MAX):
            disk.remove(str(number))
        held = len(os.listdir("/proc/self/fd")) - before
    assert os.listdir(tmp_path) == []
    # The one that is looked at, and the reader.
    assert held <= gradual.WAITING_MAX + 2
    wait_until(idle)


def test_what_was_written_back_is_the_same(tmp_path: Path) -> None:
    disk = SystemDisk(str(tmp_path))
    file = disk.open("file", write=True, create=True)
    contents = os.urandom(3 * gradual.WRITE_BYTES + 17)
    file.write(0, [contents])
    file.write_back(100, len(contents))
    file.sync()
    assert file.read(0, len(contents)) == contents
    file.write_back(5, 5)
    file.close()


def test_errors_of_writing_back_are_told_and_its_absence_is_not() -> None:
    with pytest.raises(OSError, match="Bad file descriptor"):
        gradual.write_back(1 << 20, 0, 1)
    read, write = os.pipe()
    try:
        gradual.write_back(write, 0, 1)
    finally:
        os.close(read)
        os.close(write)
