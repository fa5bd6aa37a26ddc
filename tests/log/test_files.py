from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headrace.log.files import OpenFiles
from headrace.runtime.disk import SystemDisk


@pytest.fixture
def disk(tmp_path: Path) -> SystemDisk:
    return SystemDisk(str(tmp_path))


def test_going_round_more_files_than_there_is_room_for_finds_most_of_them_open(disk: SystemDisk) -> None:
    files = OpenFiles(disk, 60)
    names = [f"{number:03d}" for number in range(100)]
    opened = {name: files.get(name, create=True) for name in names}
    found = 0
    for _ in range(5):
        for name in names:
            file = files.get(name)
            found += file is opened[name]
            opened[name] = file
            assert len(files) == 60
    assert found >= 5 * 59
    with pytest.raises(FileNotFoundError):
        files.get("missing")
    assert len(files) == 60
    files.close()


def test_files_that_nobody_uses_any_more_make_room(disk: SystemDisk) -> None:
    files = OpenFiles(disk, 60)
    for number in range(60):
        files.get(f"old{number}", create=True)
    names = [f"new{number}" for number in range(60)]
    for _ in range(4):
        opened = [files.get(name, create=True) for name in names]
    assert [files.get(name) for name in names] == opened
    assert len(files) == 60
    files.close()


def test_a_pinned_file_outlives_its_place(disk: SystemDisk) -> None:
    files = OpenFiles(disk, 1)
    a = files.get("a", create=True)
    a.write(0, [b"hello"])
    a.pin()
    files.get("b", create=True)
    assert a.read(0, 5) == b"hello"
    a.unpin()
    with pytest.raises(OSError, match="Bad file descriptor"):
        a.read(0, 5)
    files.forget("b")
    assert len(files) == 0
    files.close()


def test_work_off_the_loop_has_descriptors_of_its_own(tmp_path: Path) -> None:
    disk = SystemDisk(str(tmp_path))
    files = OpenFiles(disk, 2)
    for name in ("a", "b"):
        files.get(name, create=True).write(0, [name.encode()])
    seen = []

    def look() -> None:
        mine = files.get("a")
        # The loop's is closed under nobody: this is another one, and the same as before.
        seen.append((mine is files.get("a"), mine is loops, mine.read(0, 1)))

    loops = files.get("a")
    with ThreadPoolExecutor(1) as pool:
        pool.submit(look).result()
        files.forget("a")
        disk.rename("b", "a")
        loops = files.get("a")
        pool.submit(look).result()
    assert seen == [(True, False, b"a"), (True, False, b"b")]
    files.close()
