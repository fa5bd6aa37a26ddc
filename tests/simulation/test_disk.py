"""The disk that forgets: what a sync promises, and that everything else can be lost."""

from __future__ import annotations

import errno
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.longer import examples

from headrace.errors import DataDirectoryLocked
from headrace.runtime.disk import read_whole, replace_whole
from simulation.disk import SimulatedDisk
from simulation.faults import Killed, Plan, PowerCut, kind_of
from simulation.storage import SECTOR, Storage


def disk_on(storage: Storage, plan: Plan | None = None, seed: int = 0) -> SimulatedDisk:
    return SimulatedDisk(storage, random.Random(seed), plan=plan)


def after(disk: SimulatedDisk, seed: int) -> SimulatedDisk:
    return disk_on(disk.storage.after_power_cut(random.Random(seed)))


def outcomes(prepare, look, seeds: int = 200) -> set[object]:
    """Everything that `look` finds after power cuts of many seeds."""
    found = set()
    for seed in range(seeds):
        disk = disk_on(Storage())
        prepare(disk)
        found.add(look(after(disk, seed)))
    return found


def make(disk: SimulatedDisk, path: str, content: bytes) -> None:
    file = disk.open(path, write=True, create=True)
    file.write(0, [content])
    file.sync()
    disk.sync_dir(path.rpartition("/")[0])


def test_what_was_synced_survives():
    assert outcomes(lambda disk: make(disk, "a", b"x" * 5000), lambda disk: read_whole(disk, "a")) == {b"x" * 5000}


def test_a_file_whose_name_was_not_synced_may_be_gone():
    def prepare(disk):
        file = disk.open("a", write=True, create=True)
        file.write(0, [b"x"])
        file.sync()

    assert outcomes(prepare, lambda disk: read_whole(disk, "a")) == {None, b"x"}


def test_a_folder_whose_name_was_not_synced_takes_its_files_along():
    def prepare(disk):
        disk.mkdir("d")
        make(disk, "d/a", b"x")

    assert outcomes(prepare, lambda disk: read_whole(disk, "d/a")) == {None, b"x"}


def test_any_subset_of_unsynced_sectors_survives():
    def prepare(disk):
        make(disk, "a", bytes(3 * SECTOR))
        disk.open("a", write=True).write(0, [b"x" * 3 * SECTOR])

    def look(disk):
        content = read_whole(disk, "a")
        return "".join("x" if content[at * SECTOR] else "." for at in range(3))

    assert outcomes(prepare, look, 500) == {"...", "x..", ".x.", "..x", "xx.", "x.x", ".xx", "xxx"}


def test_a_sector_may_hold_any_content_since_the_last_sync():
    def prepare(disk):
        make(disk, "a", b"0")
        file = disk.open("a", write=True)
        for content in (b"1", b"2", b"3"):
            file.write(0, [content])

    assert outcomes(prepare, lambda disk: read_whole(disk, "a")) == {b"0", b"1", b"2", b"3"}


def test_files_are_written_back_in_any_order():
    def prepare(disk):
        make(disk, "a", b"-")
        make(disk, "b", b"-")
        disk.open("a", write=True).write(0, [b"1"])
        disk.open("b", write=True).write(0, [b"2"])

    found = outcomes(prepare, lambda disk: (read_whole(disk, "a"), read_whole(disk, "b")))
    assert found == {(b"-", b"-"), (b"1", b"-"), (b"-", b"2"), (b"1", b"2")}


def test_write_durably_covers_its_range_and_the_size_up_to_it():
    def prepare(disk):
        make(disk, "a", b"")
        file = disk.open("a", write=True)
        file.write(0, [b"a" * 4 * SECTOR])
        file.write_durably(SECTOR, [b"b" * SECTOR])

    found = outcomes(prepare, lambda disk: read_whole(disk, "a"))
    assert all(content[SECTOR : 2 * SECTOR] == b"b" * SECTOR for content in found)
    assert {content[:SECTOR] for content in found} == {bytes(SECTOR), b"a" * SECTOR}
    assert min(map(len, found)) < 4 * SECTOR <= max(map(len, found))


def test_unsynced_growth_comes_back_as_old_new_or_between():
    def prepare(disk):
        make(disk, "a", b"x" * 100)
        disk.open("a", write=True).write(100, [b"y" * 100])

    sizes = outcomes(prepare, lambda disk: disk.open("a").size())
    assert {100, 200} < sizes
    assert sizes <= set(range(100, 201))


def test_a_truncate_is_undone_or_kept_whole():
    def prepare(disk):
        make(disk, "a", b"x" * 2000)
        disk.open("a", write=True).truncate(300)

    assert outcomes(prepare, lambda disk: read_whole(disk, "a")) == {b"x" * 2000, b"x" * 300}


def test_contents_from_before_a_kept_truncate_do_not_come_back():
    def prepare(disk):
        make(disk, "a", b"x" * 2000)
        file = disk.open("a", write=True)
        file.truncate(0)
        file.write(0, [b"y" * 2000])

    for content in outcomes(prepare, lambda disk: read_whole(disk, "a"), 500):
        assert content == b"x" * 2000 or b"x" not in content


def test_a_durable_write_keeps_the_truncate_before_it():
    def prepare(disk):
        make(disk, "a", b"x" * 2000)
        file = disk.open("a", write=True)
        file.truncate(0)
        file.write_durably(0, [b"y"])

    assert outcomes(prepare, lambda disk: read_whole(disk, "a")) == {b"y"}


def test_a_rename_is_atomic_and_may_be_undone():
    def prepare(disk):
        make(disk, "a", b"old")
        make(disk, "b", b"new")
        disk.rename("b", "a")

    found = outcomes(prepare, lambda disk: (read_whole(disk, "a"), read_whole(disk, "b")))
    assert found == {(b"old", b"new"), (b"new", None)}


def test_a_remove_may_be_undone_until_its_folder_is_synced():
    def prepare(disk):
        make(disk, "a", b"x")
        disk.remove("a")

    assert outcomes(prepare, lambda disk: disk.exists("a")) == {True, False}

    def prepare_synced(disk):
        prepare(disk)
        disk.sync_dir("")

    assert outcomes(prepare_synced, lambda disk: disk.exists("a")) == {False}


def test_changes_of_names_are_kept_one_by_one():
    def prepare(disk):
        for name in "ab":
            disk.open(name, write=True, create=True)

    assert outcomes(prepare, lambda disk: tuple(disk.listdir(""))) == {(), ("a",), ("b",), ("a", "b")}


def test_replace_whole_shows_the_old_or_the_new_at_every_crash_point():
    operations = 40
    found = set()
    for seed in range(600):
        storage = Storage()
        make(disk_on(storage), "a", b"o" * 2000)
        disk = disk_on(storage, Plan(crash_at=1 + seed % operations), seed)
        try:
            replace_whole(disk, "a", b"n" * 3000)
            finished = True
        except PowerCut:
            finished = False
        content = read_whole(after(disk, seed), "a")
        assert content in (b"o" * 2000, b"n" * 3000)
        assert not finished or content == b"n" * 3000
        found.add(content)
    assert len(found) == 2


def test_kill_keeps_the_cache_and_the_cache_stays_unsynced():
    storage = Storage()
    make(disk_on(storage), "a", b"0")
    disk = disk_on(storage, Plan(crash_at=2, phase="before", kill=True))
    disk.open("a", write=True).write(0, [b"1"])
    with pytest.raises(Killed):
        disk.open("a", write=True).write(0, [b"2"])
    assert read_whole(disk_on(storage), "a") == b"1"
    twin = storage.after_power_cut(random.Random(0))
    assert read_whole(disk_on(twin), "a") in (b"0", b"1")


def test_a_dead_disk_does_nothing_more():
    storage = Storage()
    disk = disk_on(storage, Plan(crash_at=1, phase="before"))
    with pytest.raises(PowerCut):
        disk.open("a", write=True, create=True)
    with pytest.raises(PowerCut):
        disk.open("b", write=True, create=True)
    assert disk_on(storage).listdir("") == []


def test_a_torn_write_has_a_part_of_its_bytes():
    lengths = set()
    for seed in range(200):
        disk = disk_on(Storage(), Plan(crash_at=2, phase="middle", kill=True), seed)
        file = disk.open("a", write=True, create=True)
        with pytest.raises(Killed):
            file.write(0, [b"x" * 1000])
        lengths.add(len(read_whole(disk_on(disk.storage), "a")))
    assert len(lengths) > 50


def test_a_full_disk_takes_what_fits_and_recovers():
    storage = Storage(capacity=1000)
    disk = disk_on(storage)
    file = disk.open("a", write=True, create=True)
    with pytest.raises(OSError, match="space") as error:
        file.write(0, [b"x" * 1500])
    assert error.value.errno == errno.ENOSPC
    assert file.size() == 1000
    assert disk.free_bytes() == 0
    file.write(0, [b"y" * 1000])
    with pytest.raises(OSError, match="space"):
        file.allocate(1001)
    storage.capacity = 2000
    file.allocate(1500)
    assert disk.free_bytes() == 500
    disk.remove("a")
    assert disk.free_bytes() == 2000


def test_a_failed_sync_may_lose_the_data_although_the_next_one_succeeds():
    found = set()
    for seed in range(200):
        storage = Storage()
        make(disk_on(storage), "a", b"old")
        disk = disk_on(storage, Plan(sync_errors_at=frozenset({2})), seed)
        file = disk.open("a", write=True)
        file.write(0, [b"new"])
        with pytest.raises(OSError, match="Input/output") as error:
            file.sync()
        assert error.value.errno == errno.EIO
        file.sync()
        found.add((file.read(0, 3), read_whole(after(disk, seed), "a")))
    assert found == {(b"new", b"new"), (b"new", b"old"), (b"old", b"old")}


def test_an_ignored_sync_is_a_broken_flush():
    found = set()
    for seed in range(50):
        disk = disk_on(Storage(), Plan(ignored=frozenset({"sync a"})))
        make(disk, "a", b"x")
        found.add(read_whole(after(disk, seed), "a"))
    assert b"x" in found
    assert len(found) > 1


def test_files_behave_as_open_files_do():
    disk = disk_on(Storage())
    with pytest.raises(FileNotFoundError):
        disk.open("missing")
    with pytest.raises(FileNotFoundError):
        disk.open("no/folder", write=True, create=True)
    disk.mkdir("d")
    disk.mkdir("d")
    file = disk.open("d/a", write=True, create=True)
    file.write(3, [b"xy", bytearray(b"z")])
    assert file.read(0, 100) == b"\0\0\0xyz"
    assert disk.open("d/a").size() == 6
    with pytest.raises(OSError, match="Bad file"):
        disk.open("d/a").write(0, [b"x"])
    disk.rename("d", "e")
    assert disk.listdir("e") == ["a"]
    disk.remove_tree("e")
    assert disk.listdir("") == []
    assert file.read(3, 1) == b"x"
    file.pin()
    file.close()
    assert file.read(3, 1) == b"x"
    file.unpin()
    with pytest.raises(OSError, match="Bad file"):
        file.read(0, 1)
    disk.lock()
    with pytest.raises(DataDirectoryLocked):
        disk.lock()


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("journal/00000003", "folder"),
        ("journal-00000003", "journal"),
        ("orders-0/00000000000000000000.log", "segment"),
        ("orders-0/00000000000000000000.log.swap", "segment.swap"),
        ("orders-0/00000000000000000007.timeindex", "time index"),
        ("checkpoint.tmp", "checkpoint"),
        ("", "root"),
    ],
)
def test_kinds_of_files(path, kind):
    assert kind_of(path) == kind


steps = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 2000), st.integers(1, 1500)),
        st.tuples(st.just("durably"), st.integers(0, 2000), st.integers(1, 1500)),
        st.tuples(st.just("truncate"), st.integers(0, 3000), st.just(0)),
        st.tuples(st.just("allocate"), st.integers(0, 3000), st.just(0)),
        st.tuples(st.just("sync"), st.just(0), st.just(0)),
    ),
    max_size=12,
)


@settings(max_examples=examples(300), deadline=None)
@given(steps, st.integers(0, 1000))
def test_the_cache_is_a_plain_file_and_a_sync_makes_it_durable(operations, seed):
    disk = disk_on(Storage())
    file = disk.open("a", write=True, create=True)
    disk.sync_dir("")
    model = bytearray()
    promised: dict[int, int] = {}
    for number, (operation, at, length) in enumerate(operations):
        data = bytes([number + 1]) * length
        if operation in ("write", "durably"):
            model.extend(bytes(max(0, at - len(model))))
            model[at : at + length] = data
            (file.write if operation == "write" else file.write_durably)(at, [data])
            for position in range(at, at + length):
                promised.pop(position, None)
                if operation == "durably":
                    promised[position] = number + 1
        elif operation == "truncate":
            model = model[:at].ljust(at, b"\0")
            file.truncate(at)
            promised = {position: byte for position, byte in promised.items() if position < at}
        elif operation == "allocate":
            model = model.ljust(at, b"\0")
            file.allocate(at)
        else:
            file.sync()
            promised = dict(enumerate(model))
        assert file.read(0, 10_000) == model
    found = read_whole(after(disk, seed), "a")
    shrunk = any(operation == "truncate" for operation, _, _ in operations)
    for position, byte in promised.items():
        assert shrunk or found[position] == byte
    file.sync()
    assert read_whole(after(disk, seed), "a") == model
