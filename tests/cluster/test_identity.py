"""A node knows its data directory again, and one that lost something is never taken for what it was."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from tests.cluster.scripted import Scripted
from tests.cluster.store import Store

from headrace.cluster import swaps
from headrace.cluster.changes import elect, new_group
from headrace.cluster.errors import ChangeRefused, EtcdUnavailable, EtcdWentBack, NotInitialized, StartRefused
from headrace.cluster.etcd import Etcd
from headrace.cluster.identity import PATH, Identity, Plan, check_not_older, load, plan_start, save, start
from headrace.cluster.records import Cluster, Group, Incarnation, Keys, Member, Node, parse_group, parse_member
from headrace.errors import DataDirectoryInvalid
from headrace.runtime import Runtime
from headrace.runtime.disk import SystemDisk
from simulation.faults import Plan as Faults
from simulation.world import Ending, World

KEYS = Keys("main")
CLUSTER = Cluster(str(UUID(int=100)))


def directory(number: int) -> str:
    return str(UUID(int=number))


def group(*isr: int, elr: tuple[int, ...] = (), unclean: bool = False) -> Group:
    first = elect(new_group([1, 2, 3]), Incarnation(1, directory(1), 1), [])
    return replace(
        first,
        version=9,
        epoch=4,
        leader=None,
        isr=tuple(map(directory, isr)),
        elr=tuple(map(directory, elr)),
        unclean=unclean,
    )


OWN = Identity(CLUSTER.id, "g", 1, directory(1), 5, is_copying=False, seen=group(1, 2))
JOINED = Identity(CLUSTER.id, "g", 1, directory(50), 1, is_copying=True, seen=group(1, 2))


def plan(
    found: Identity | None = OWN, member: Member | None = None, now: Group | None = None, has_messages: bool = True
) -> Plan:
    return plan_start(found, has_messages, CLUSTER, member or Member(directory(1), 5), now or group(1, 2), JOINED)


def test_the_same_directory_goes_on() -> None:
    assert plan() == Plan(replace(OWN, starts=6), ())
    # It was synced, and the swap did not happen.
    assert plan(replace(OWN, starts=7)) == Plan(replace(OWN, starts=8), ())


def test_a_wiped_disk_joins_as_new() -> None:
    assert plan(None, has_messages=False) == Plan(JOINED, (directory(1),))
    assert plan(None, now=group(2, 3), has_messages=False) == Plan(JOINED, ())


def test_a_restored_backup_joins_as_new() -> None:
    assert plan(replace(OWN, starts=4)) == Plan(JOINED, (directory(1),))


def test_a_directory_that_another_took_the_place_of_joins_as_new() -> None:
    assert plan(member=Member(directory(2), 1), now=group(1, 2, 3)) == Plan(JOINED, (directory(1), directory(2)))
    assert plan_start(OWN, True, CLUSTER, None, group(1, 2), JOINED) == Plan(JOINED, (directory(1),))


def test_the_only_directory_with_every_message_is_missed() -> None:
    with pytest.raises(StartRefused, match="is the only one that has every committed message"):
        plan(None, now=group(1), has_messages=False)
    assert plan(None, now=group(1, unclean=True), has_messages=False).forgotten == (directory(1),)
    assert plan(None, now=group(1, elr=(2,)), has_messages=False).forgotten == (directory(1),)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (replace(OWN, cluster_id=directory(9)), f"belongs to cluster {directory(9)}, and this is cluster {CLUSTER.id}"),
        (replace(OWN, group="h"), "belongs to group h, and this is group g"),
        (replace(OWN, node=2), "belongs to node 2, and this is node 1"),
        (
            replace(OWN, seen=replace(OWN.seen, version=10)),
            "etcd went back in time: .* version 9 and epoch 4, .* seen 10 and 4",
        ),
        (replace(OWN, seen=replace(OWN.seen, epoch=5)), "etcd went back in time"),
        (None, "messages of a broker that ran without a cluster"),
    ],
)
def test_another_directory_is_refused_with_a_sentence(found: Identity | None, said: str) -> None:
    with pytest.raises((StartRefused, EtcdWentBack), match=said):
        plan(found)


def test_a_node_that_is_no_replica_is_refused() -> None:
    with pytest.raises(StartRefused, match=r"node 9 is not a replica .*headrace cluster add-node 9"):
        plan_start(None, False, CLUSTER, None, group(1), replace(JOINED, node=9))


def test_a_record_that_is_as_new_as_what_was_seen_passes() -> None:
    check_not_older(group(1), OWN)


def test_the_file_is_strict(tmp_path: object) -> None:
    disk = SystemDisk(str(tmp_path))
    assert load(disk) is None
    save(disk, OWN)
    assert load(disk) == OWN
    for damage, said in ((b"0" * 8 + b"\n{}", "checksum"), (b"", "checksum")):
        file = disk.open(PATH, write=True)
        file.truncate(0)
        file.write(0, [damage])
        file.close()
        with pytest.raises(DataDirectoryInvalid, match=said):
            load(disk)


# --- with etcd ---


def initialized() -> Store:
    store = Store()
    store.put(KEYS.cluster, CLUSTER.encode())
    store.put(KEYS.group("g"), new_group([1, 2, 3]).encode())
    return store


def member_in(store: Store) -> Member:
    return parse_member(store.keys[KEYS.member(1)][0].encode(), "k")


class Machine:
    """A simulated machine, on which node 1 is started again and again."""

    def __init__(self, store: Store, seed: int = 1) -> None:
        self.world = World(seed)
        self.store = store

    def start(self, **faults: object) -> Identity | str | None:
        """The identity of the start, the sentence of its refusal, or None where a crash came first."""
        ended: list[Identity | str] = []

        async def main(runtime: Runtime) -> None:
            server = Scripted(self.store.answer)
            await server.start()
            etcd = Etcd([server.address])
            try:
                ended.append(await start(runtime, etcd, KEYS, "g", 1))
            except (StartRefused, NotInitialized, EtcdUnavailable) as error:
                ended.append(str(error))
            await etcd.close()
            server.stop()

        ending = self.world.run(main, Faults(**faults))  # type: ignore[arg-type]
        assert ending is Ending.DONE or not ended
        return ended[0] if ended else None


def test_starts_are_counted_in_the_directory_and_in_etcd() -> None:
    machine = Machine(initialized())
    first = machine.start()
    assert isinstance(first, Identity)
    assert (first.starts, first.is_copying, first.seen) == (1, False, new_group([1, 2, 3]))
    second = machine.start()
    assert second == replace(first, starts=2)
    assert member_in(machine.store) == Member(first.directory_id, 2)


def test_a_lost_answer_counts_one_start() -> None:
    machine = Machine(initialized())
    machine.store.lost = 1
    first = machine.start()
    assert isinstance(first, Identity)
    assert member_in(machine.store) == Member(first.directory_id, 1)


def test_a_power_cut_at_any_step_never_puts_a_directory_behind_etcd() -> None:
    for operation in range(12):
        machine = Machine(initialized())
        first = machine.start()
        assert isinstance(first, Identity)
        machine.start(crash_at=operation)
        again = machine.start()
        assert isinstance(again, Identity)
        assert again.directory_id == first.directory_id
        assert again.starts > first.starts


def test_a_wiped_disk_leaves_isr_and_elr_before_it_is_known_by_its_new_name() -> None:
    store = initialized()
    machine = Machine(store)
    first = machine.start()
    assert isinstance(first, Identity)
    led = elect(new_group([1, 2, 3]), Incarnation(1, first.directory_id, 1), [])
    store.put(KEYS.group("g"), replace(led, isr=(first.directory_id, directory(2))).encode())
    other = Machine(store, seed=2).start()
    assert isinstance(other, Identity)
    assert other.directory_id != first.directory_id
    assert (other.starts, other.is_copying) == (1, True)
    after = parse_group(store.keys[KEYS.group("g")][0].encode(), "k")
    assert (after.isr, after.leader) == ((directory(2),), None)
    assert member_in(store) == Member(other.directory_id, 1)
    # The old disk comes back.
    back = machine.start()
    assert isinstance(back, Identity)
    assert back.directory_id not in (first.directory_id, other.directory_id)


def test_a_node_that_runs_elsewhere_is_not_started_twice() -> None:
    store = initialized()
    machine = Machine(store)
    first = machine.start()
    assert isinstance(first, Identity)
    running = Node(first.directory_id, 1, "g", "", {"peer": "a:1"}, "b", 1, 1)
    store.put(KEYS.node(1), running.encode())
    # It is this one's own, of a process that is gone.
    assert isinstance(machine.start(), Identity)
    store.put(KEYS.node(1), replace(running, directory_id=directory(7)).encode())
    assert "node 1 runs already, at a:1" in str(machine.start())


def test_a_cluster_that_does_not_exist_is_named() -> None:
    store = Store()
    assert "etcd has no cluster 'main'. Run headrace cluster init." in str(Machine(store).start())
    store.put(KEYS.cluster, CLUSTER.encode())
    assert "etcd has no group 'g' in this cluster" in str(Machine(store).start())


def test_a_change_is_made_once_whatever_answers_are_lost_and_others_change() -> None:
    store = initialized()
    world = World(1)
    calls = 0

    def add(now: Group) -> Group:
        nonlocal calls
        calls += 1
        if calls == 1:
            # Another is faster.
            store.put(KEYS.group("g"), replace(now, version=2, unclean=True).encode())
        return replace(now, version=now.version + 1, lag_ms=now.lag_ms + 1)

    async def main(runtime: Runtime) -> None:
        server = Scripted(store.answer)
        await server.start()
        etcd = Etcd([server.address])
        store.lost = 2
        before = new_group([1, 2, 3])
        assert await swaps.change_group(etcd, KEYS.group("g"), add) == replace(
            before, version=3, unclean=True, lag_ms=before.lag_ms + 1
        )
        assert parse_group(store.keys[KEYS.group("g")][0].encode(), "k").lag_ms == before.lag_ms + 1

        def refuse(now: Group) -> Group:
            raise ChangeRefused("no")

        with pytest.raises(ChangeRefused, match="no"):
            await swaps.change_group(etcd, KEYS.group("g"), refuse)

        # The swap is carried out, its answer is lost, and another change comes on top.
        def overtake(now: Group) -> Group:
            if now.unclean is False:
                raise ChangeRefused("it is false already")
            return replace(now, version=now.version + 1, unclean=False)

        def overtaken(path: str, body: dict[str, Any]) -> object:
            answered = store.answer(path, body)
            if path == "/v3/kv/txn" and store.lost == 0 and isinstance(answered, tuple):
                now = parse_group(store.keys[KEYS.group("g")][0].encode(), "k")
                store.put(KEYS.group("g"), replace(now, version=now.version + 1).encode())
            return answered

        store.lost = 1
        server.answer = overtaken
        with pytest.raises(
            ChangeRefused, match=r"false already\. An earlier attempt was not answered, and may have made"
        ):
            await swaps.change_group(etcd, KEYS.group("g"), overtake)
        server.answer = lambda path, body: (
            store.answer(path, body) if path == "/v3/kv/range" else (503, {"code": 14, "message": "x"})
        )
        with pytest.raises(EtcdUnavailable, match="may have been made, or may be made later"):
            await swaps.change_group(etcd, KEYS.group("g"), add)
        await etcd.close()
        server.stop()

    assert world.run(main) is Ending.DONE
