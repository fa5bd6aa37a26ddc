from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headrace.ground.disk import SystemDisk
from headrace.log.files import OpenFiles


@pytest.fixture
def disk(tmp_path: Path) -> SystemDisk:
    return SystemDisk(str(tmp_path))


def test_the_least_recently_used_file_is_closed(disk: SystemDisk) -> None:
    files = OpenFiles(disk, 2)
    a = files.get("a", create=True)
    files.get("b", create=True)
    assert files.get("a") is a
    files.get("c", create=True)
    assert len(files) == 2
    assert files.get("a") is a  # it was b that went
    with pytest.raises(FileNotFoundError):
        files.get("missing")


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
