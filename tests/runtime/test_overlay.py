"""A disk that keeps changes to itself, against a real one that makes them."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import DataDirectoryLocked
from headrace.runtime.disk import Disk, SystemDisk
from headrace.runtime.overlay import BLOCK_BYTES, OverlayDisk

NAMES = ["a", "b", "f/a", "f/b"]
PLACES = st.sampled_from([0, 1, 100, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 5, 3 * BLOCK_BYTES - 2])
SIZES = st.sampled_from([0, 1, 7, BLOCK_BYTES, 2 * BLOCK_BYTES + 3])
STEPS = st.one_of(
    st.tuples(st.just("write"), st.sampled_from(NAMES), PLACES, SIZES),
    st.tuples(st.just("truncate"), st.sampled_from(NAMES), PLACES),
    st.tuples(st.just("rename"), st.sampled_from(NAMES), st.sampled_from(NAMES)),
    st.tuples(st.just("remove"), st.sampled_from(NAMES)),
    st.tuples(st.just("remove_tree"), st.just("f")),
)


def do(disk: Disk, step: tuple, number: int) -> None:
    what, name, *more = step
    if name.startswith("f"):
        disk.mkdir("f")
    if what == "write":
        place, size = more
        file = disk.open(name, write=True, create=True)
        file.write(place, [bytes([number % 256]) * size])
        file.close()
    elif what == "truncate" and disk.exists(name):
        file = disk.open(name, write=True)
        file.truncate(more[0])
        file.close()
    elif what == "rename" and disk.exists(name) and name != more[0]:
        disk.mkdir("f")
        disk.rename(name, more[0])
    elif what == "remove":
        disk.remove(name)
    elif what == "remove_tree":
        disk.remove_tree(name)


def contents(disk: Disk) -> dict[str, bytes | None]:
    found: dict[str, bytes | None] = {}
    for name in NAMES:
        found[name] = None
        if disk.exists(name):
            file = disk.open(name)
            found[name] = file.read(0, file.size())
            # Any part of it is that part of the whole.
            assert file.read(BLOCK_BYTES - 3, 10) == found[name][BLOCK_BYTES - 3 : BLOCK_BYTES + 7]
            file.close()
    return found


def tree(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


@settings(deadline=None)
@given(st.lists(STEPS, max_size=12))
def test_it_reads_as_if_it_had_been_changed_and_is_not(steps: list[tuple]) -> None:
    with tempfile.TemporaryDirectory() as place:
        real, seen = Path(place, "real"), Path(place, "seen")
        (seen / "f").mkdir(parents=True)
        (seen / "a").write_bytes(b"x" * 100)
        (seen / "f" / "a").write_bytes(b"y" * (BLOCK_BYTES * 2 + 10))
        shutil.copytree(seen, real)
        before = tree(seen)
        changed, overlay = SystemDisk(str(real)), OverlayDisk(str(seen))
        for number, step in enumerate(steps):
            do(changed, step, number)
            do(overlay, step, number)
            assert contents(overlay) == contents(changed)
            assert [each for each in overlay.listdir("") if each != "f"] == [
                each for each in changed.listdir("") if each != "f"
            ]
            assert overlay.listdir("f") == changed.listdir("f")
        assert tree(seen) == before


def test_readers_share_the_folder_and_no_broker_has_it(tmp_path: Path) -> None:
    broker = SystemDisk(str(tmp_path))
    broker.lock()
    reader = OverlayDisk(str(tmp_path))
    with pytest.raises(DataDirectoryLocked):
        reader.lock()
    broker.unlock()
    reader.lock()
    another = OverlayDisk(str(tmp_path))
    another.lock()
    with pytest.raises(DataDirectoryLocked):
        broker.lock()
    reader.unlock()
    another.unlock()
    broker.lock()
    broker.unlock()


def test_a_copy_without_a_lock_is_left_without_one(tmp_path: Path) -> None:
    disk = OverlayDisk(str(tmp_path))
    disk.lock()
    disk.unlock()
    assert os.listdir(tmp_path) == []


def test_what_is_written_again_is_not_held(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"same" * 1_000)
    disk = OverlayDisk(str(tmp_path))
    file = disk.open("a", write=True)
    file.write(0, [b"same" * 1_000])
    assert not disk._files["a"].blocks
    file.close()
