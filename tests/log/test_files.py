from __future__ import annotations

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
