from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.runtime.disk import SystemDisk, replace_whole


def modes(root: Path) -> set[tuple[str, int]]:
    """What may be done with everything below a directory, it included."""
    found = [root, *root.rglob("*")]
    return {("folder" if each.is_dir() else "file", each.stat().st_mode & 0o777) for each in found}


@pytest.mark.parametrize(
    ("before", "folders", "files"),
    [(None, 0o700, 0o600), (0o700, 0o700, 0o600), (0o750, 0o750, 0o640), (0o755, 0o700, 0o600)],
)
def test_what_is_stored_is_for_the_brokers_user_and_for_a_group_that_was_let_in(
    tmp_path: Path, before: int | None, folders: int, files: int
):
    root = tmp_path / "data"
    umask = os.umask(0)
    try:
        if before is not None:
            root.mkdir(before)
        disk = SystemDisk(str(root))
        disk.lock()
        disk.mkdir("a")
        disk.open("a/b", write=True, create=True).close()
        replace_whole(disk, "a/c", b"x")
        disk.unlock()
    finally:
        os.umask(umask)
    root.chmod(folders)
    assert modes(root) == {("folder", folders), ("file", files)}
