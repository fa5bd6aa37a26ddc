"""Every change of a group's record, over all records that changes can bring about.

Beside the record stands which data directories have everything that is committed. A leader commits as it may, and
every change is tried with any arguments, also with a wrong idea of which nodes are alive. Whatever is accepted must
leave each member of the ISR and of the ELR with everything that is committed. For three nodes all states are searched;
a state machine of Hypothesis walks among four, with directories that are wiped and processes that are started again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import combinations
from uuid import UUID

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headrace.cluster import changes
from headrace.cluster.errors import ChangeRefused
from headrace.cluster.records import Group, Incarnation, contradictions, parse_group

NODES = (1, 2, 3, 4)
nodes = st.sampled_from(NODES)
some_nodes = st.sets(nodes)


def directory(number: int) -> str:
    return str(UUID(int=number))


def incarnation(node: int, starts: int = 1) -> Incarnation:
    return Incarnation(node, directory(node), starts)


class Changes(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.group = changes.new_group([1])
        self.committed = 0
        self.made = 0
        self.current = {node: self.new_incarnation(node) for node in NODES}
        self.has = {each.directory_id: 0 for each in self.current.values()}
        """How much each directory has; those that were wiped are in it no more."""

    def new_incarnation(self, node: int) -> Incarnation:
        self.made += 1
        return Incarnation(node, directory(self.made), 1)

    @initialize(replicas=st.lists(nodes, min_size=1, unique=True), min_isr=st.integers(0, 4))
    def found(self, replicas: list[int], min_isr: int) -> None:
        try:
            self.group = changes.new_group(replicas, min_isr)
        except ChangeRefused:
            self.group = changes.new_group(replicas)

    def directories(self, of: set[int]) -> set[str]:
        return {self.current[node].directory_id for node in of}

    def change(self, make: Callable[[Group], Group], epochs: int = 0) -> bool:
        """Try a change; whether it was accepted."""
        try:
            after = make(self.group)
        except ChangeRefused:
            return False
        assert after.version == self.group.version + 1
        assert after.epoch == self.group.epoch + epochs
        assert contradictions(after) == []
        assert parse_group(after.encode(), "k") == after
        self.group = after
        return True

    # --- what happens to the messages ---

    @rule()
    def commit(self) -> None:
        """The leader commits once the whole ISR has it."""
        isr = self.group.isr
        if self.group.leader is not None and len(isr) >= self.group.min_isr and all(each in self.has for each in isr):
            self.committed += 1
            self.has |= dict.fromkeys(isr, self.committed)

    @rule(node=nodes)
    def restart(self, node: int) -> None:
        before = self.current[node]
        self.current[node] = Incarnation(node, before.directory_id, before.starts + 1)

    @rule(node=nodes, forgets=st.booleans())
    def wipe(self, node: int, forgets: bool) -> None:
        old = self.current[node]
        if forgets and not self.change(lambda group: changes.forget_directory(group, old.directory_id)):
            return
        del self.has[old.directory_id]
        self.current[node] = self.new_incarnation(node)
        self.has[self.current[node].directory_id] = 0

    # --- changes ---

    @rule(node=nodes, alive=some_nodes)
    def elect(self, node: int, alive: set[int]) -> None:
        candidate = self.current[node]
        if self.change(lambda group: changes.elect(group, candidate, self.directories(alive)), epochs=1):
            assert self.group.leader == candidate
            assert self.has[candidate.directory_id] == self.committed

    @rule(node=nodes, alive=some_nodes)
    def elect_unclean(self, node: int, alive: set[int]) -> None:
        candidate = self.current[node]
        if self.change(lambda group: changes.elect_unclean(group, candidate, self.directories(alive)), epochs=1):
            self.committed = self.has[candidate.directory_id]
            self.has = {each: min(has, self.committed) for each, has in self.has.items()}

    @rule(by=nodes, to=nodes)
    def hand_over(self, by: int, to: int) -> None:
        if self.change(lambda group: changes.hand_over(group, self.leader(by), self.current[to]), epochs=1):
            assert self.has[self.current[to].directory_id] == self.committed

    def leader(self, otherwise: int) -> Incarnation:
        """Mostly the one that leads."""
        return self.group.leader or self.current[otherwise]

    @rule(by=nodes)
    def resign(self, by: int) -> None:
        if self.change(lambda group: changes.resign(group, self.leader(by))):
            assert self.group.leader is None

    @rule(by=nodes, node=nodes)
    def add_to_isr(self, by: int, node: int) -> None:
        if self.change(lambda group: changes.add_to_isr(group, self.leader(by), self.current[node])):
            self.has[self.current[node].directory_id] = self.committed

    @rule(by=nodes, of=some_nodes)
    def remove_from_isr(self, by: int, of: set[int]) -> None:
        self.change(lambda group: changes.remove_from_isr(group, self.leader(by), self.directories(of)))

    @rule(node=nodes)
    def add_replica(self, node: int) -> None:
        self.change(lambda group: changes.add_replica(group, node))

    @rule(node=nodes)
    def remove_replica(self, node: int) -> None:
        self.change(lambda group: changes.remove_replica(group, node))

    @rule(by=nodes, node=nodes)
    def drop_replica(self, by: int, node: int) -> None:
        held = self.current[node].directory_id
        self.change(lambda group: changes.drop_replica(group, self.leader(by), node, held))

    @rule(node=nodes)
    def request_transfer(self, node: int) -> None:
        held = self.current[node].directory_id
        self.change(lambda group: changes.request_transfer(group, node, held))

    @rule(value=st.integers(0, 5))
    def set_min_isr(self, value: int) -> None:
        before = self.group.min_isr
        if self.change(lambda group: changes.configure(group, min_isr=value)) and before != value:
            assert self.group.elr == ()

    @rule(value=st.booleans())
    def set_unclean(self, value: bool) -> None:
        self.change(lambda group: changes.configure(group, unclean=value))

    @rule()
    def touch(self) -> None:
        before = self.group
        assert self.change(changes.touch)
        assert changes.touch(before) == self.group

    @invariant()
    def isr_and_elr_have_what_is_committed(self) -> None:
        for each in (*self.group.isr, *self.group.elr):
            assert self.has.get(each, self.committed) == self.committed


TestChanges = Changes.TestCase
TestChanges.settings = settings(stateful_step_count=40)


# --- all states of three nodes ---

State = tuple[Group, frozenset[str]]
SUBSETS = [frozenset(each) for count in range(4) for each in combinations((1, 2, 3), count)]


def moves(group: Group, with_replicas: bool) -> Iterator[tuple[str, Callable[[], Group], Incarnation | None]]:
    """Every change with all arguments: its name, the change, and the incarnation that it is about."""
    leader = group.leader or incarnation(1)
    for node in (1, 2, 3):
        each = incarnation(node)
        for living in SUBSETS:
            yield "elect", partial(changes.elect, group, each, alive(*living)), each
            yield "elect_unclean", partial(changes.elect_unclean, group, each, alive(*living)), each
        yield "hand_over", partial(changes.hand_over, group, leader, each), each
        yield "add_to_isr", partial(changes.add_to_isr, group, leader, each), each
        yield "forget", partial(changes.forget_directory, group, each.directory_id), each
        yield "set_min_isr", partial(changes.configure, group, min_isr=node), None
        yield "request_transfer", partial(changes.request_transfer, group, node, each.directory_id), None
        if with_replicas:
            yield "add_replica", partial(changes.add_replica, group, node), None
            yield "remove_replica", partial(changes.remove_replica, group, node), None
            yield "drop_replica", partial(changes.drop_replica, group, leader, node, each.directory_id), None
    for living in SUBSETS:
        yield "remove_from_isr", partial(changes.remove_from_isr, group, leader, alive(*living)), None
    yield "resign", partial(changes.resign, group, leader), None
    yield "touch", partial(changes.touch, group), None


def whole_after(name: str, about: Incarnation | None, whole: frozenset[str]) -> frozenset[str]:
    """Which directories have everything that is committed, after a change."""
    if about is not None and name == "add_to_isr":
        return whole | {about.directory_id}
    if about is not None and name == "elect_unclean":
        return frozenset({about.directory_id})
    if about is not None and name == "forget":
        return whole - {about.directory_id}
    return whole


@pytest.mark.parametrize(("replicas", "unclean"), [((1, 2, 3), True), ((1, 2), False)])
def test_no_state_of_three_nodes_has_a_member_that_lacks_what_is_committed(
    replicas: tuple[int, ...], unclean: bool
) -> None:
    everyone = frozenset(alive(1, 2, 3))
    first = replace(changes.new_group(replicas), unclean=unclean)
    seen: set[State] = {(first, everyone)}
    left = list(seen)
    accepted = Counter[str]()
    while left:
        group, whole = left.pop()
        following: list[State] = []
        if group.leader is not None and len(group.isr) >= group.min_isr:
            following.append((group, frozenset(group.isr)))
        for name, change, about in moves(group, with_replicas=not unclean):
            try:
                after = change()
            except ChangeRefused:
                continue
            accepted[name] += 1
            assert after.version == group.version + 1
            assert after.epoch == group.epoch + (name in ("elect", "elect_unclean", "hand_over"))
            assert contradictions(after) == []
            assert after.min_isr == group.min_isr or not after.elr
            following.append((after, whole_after(name, about, whole)))
        for after, whole_now in following:
            assert whole_now >= {*after.isr, *after.elr}, (group, after)
            # Numbers that only rise would make the search endless, and so would orders that mean nothing.
            plain = replace(
                after,
                version=1,
                epoch=min(after.epoch, 1),
                isr=tuple(sorted(after.isr)),
                elr=tuple(sorted(after.elr)),
                replicas=tuple(sorted(after.replicas)),
                adding=tuple(sorted(after.adding)),
                removing=tuple(sorted(after.removing)),
                transfer_to=None,
            )
            if (plain, whole_now) not in seen:
                seen.add((plain, whole_now))
                left.append((plain, whole_now))
    assert len(seen) > 100
    assert accepted.keys() >= {"elect", "hand_over", "add_to_isr", "remove_from_isr", "resign", "forget", "set_min_isr"}
    assert unclean == ("elect_unclean" in accepted)
    assert unclean or accepted.keys() >= {"add_replica", "remove_replica", "drop_replica"}


# --- single rules ---


def led(isr: tuple[int, ...] = (1, 2, 3), elr: tuple[int, ...] = (), min_isr: int = 2, **others: object) -> Group:
    """Three replicas, of which the first of the ISR leads."""
    fields = {
        "version": 7,
        "epoch": 4,
        "leader": incarnation(isr[0]) if isr else None,
        "isr": tuple(map(directory, isr)),
        "elr": tuple(map(directory, elr)),
        "replicas": (1, 2, 3),
        "adding": (),
        "removing": (),
        "transfer_to": None,
        "min_isr": min_isr,
        "unclean": False,
    }
    group = Group(**{**fields, **others})  # type: ignore[arg-type]
    assert contradictions(group) == []
    return group


def alive(*of: int) -> set[str]:
    return set(map(directory, of))


def test_a_new_group_asks_for_a_majority() -> None:
    assert [changes.new_group(range(count)).min_isr for count in (1, 2, 3, 4, 5)] == [1, 2, 2, 3, 3]


def test_the_first_leader_is_alone_in_sync() -> None:
    new = changes.new_group([2, 1, 3])
    with pytest.raises(ChangeRefused, match="node 2 begins the group"):
        changes.elect(new, incarnation(1), alive(1))
    group = changes.elect(new, incarnation(2), alive(1, 2, 3))
    assert (group.epoch, group.leader, group.isr, group.elr) == (1, incarnation(2), (directory(2),), ())


def test_a_dead_leader_leaves_the_isr() -> None:
    group = changes.elect(led(), incarnation(2), alive(2, 3))
    assert (group.epoch, group.leader) == (5, incarnation(2))
    assert (group.isr, group.elr) == ((directory(2), directory(3)), ())


def test_below_min_isr_it_stays_eligible() -> None:
    group = changes.elect(led(isr=(1, 2)), incarnation(2), alive(2))
    assert (group.isr, group.elr) == ((directory(2),), (directory(1),))


def test_a_member_of_the_elr_leads_when_none_of_the_isr_is_alive() -> None:
    group = led(isr=(1,), elr=(2, 3))
    after = changes.elect(group, incarnation(3), alive(2, 3))
    assert (after.isr, set(after.elr)) == ((directory(3),), alive(1, 2))
    with pytest.raises(ChangeRefused, match="leads, and it is alive"):
        changes.elect(group, incarnation(3), alive(1, 3))
    leaderless = changes.resign(group, incarnation(1))
    with pytest.raises(ChangeRefused, match="goes before the ELR"):
        changes.elect(leaderless, incarnation(3), alive(1, 3))


def test_a_node_that_may_lack_messages_never_leads_but_by_switch() -> None:
    group = led(isr=(1,), min_isr=1)
    with pytest.raises(ChangeRefused, match="node 2 may lack committed messages"):
        changes.elect(group, incarnation(2), alive(2))
    with pytest.raises(ChangeRefused, match=r"unclean.leader.election.enable is false"):
        changes.elect_unclean(group, incarnation(2), alive(2))
    allowed = changes.configure(group, unclean=True)
    with pytest.raises(ChangeRefused, match="a replica that has every committed message is alive"):
        changes.elect_unclean(allowed, incarnation(2), alive(1, 2))
    assert changes.elect_unclean(allowed, incarnation(2), alive(2, 3)).isr == (directory(2),)


def test_a_leader_that_was_restarted_stands_again_and_its_old_self_does_not() -> None:
    group = changes.elect(led(), incarnation(1, 2), alive(1, 2, 3))
    assert (group.epoch, group.leader, set(group.isr)) == (5, incarnation(1, 2), alive(1, 2, 3))
    with pytest.raises(ChangeRefused, match="node 1 has been started again"):
        changes.elect(group, incarnation(1, 1), alive(1, 2, 3))
    with pytest.raises(ChangeRefused, match="node 1 does not lead any more"):
        changes.remove_from_isr(group, incarnation(1, 1), alive(2))


def test_a_leader_that_gives_up_stays_in_sync_until_another_leads() -> None:
    group = changes.resign(led(), incarnation(1))
    assert (group.leader, group.isr, group.epoch) == (None, (directory(1), directory(2), directory(3)), 4)
    with pytest.raises(ChangeRefused, match="no node leads, and node 1 may be the last that has everything"):
        changes.leave_isr(group, incarnation(1))
    after = changes.leave_isr(changes.elect(group, incarnation(2), alive(1, 2, 3)), incarnation(1))
    assert after.isr == (directory(2), directory(3))


def test_a_removal_below_min_isr_fills_the_elr_and_an_addition_empties_it() -> None:
    group = changes.remove_from_isr(led(), incarnation(1), alive(2, 3))
    assert (group.isr, set(group.elr)) == ((directory(1),), alive(2, 3))
    # 3 may have missed nothing, but commits go on without it from here.
    group = changes.add_to_isr(group, incarnation(1), incarnation(2))
    assert (group.isr, group.elr) == ((directory(1), directory(2)), ())


def test_another_min_isr_empties_the_elr() -> None:
    group = changes.configure(led(isr=(1,), elr=(2, 3)), min_isr=1)
    assert (group.min_isr, group.elr) == (1, ())
    kept = changes.configure(led(isr=(1,), elr=(2, 3)), min_isr=2, lag_ms=5)
    assert (kept.elr, kept.lag_ms, kept.version) == ((directory(2), directory(3)), 5, 8)
    for value in (0, 4):
        with pytest.raises(ChangeRefused, match="must be 1 to 3"):
            changes.configure(group, min_isr=value)


def test_the_last_directory_with_every_message_is_not_forgotten() -> None:
    group = changes.forget_directory(led(isr=(1,), elr=(2,)), directory(1))
    assert (group.leader, group.isr, group.elr) == (None, (), (directory(2),))
    with pytest.raises(ChangeRefused, match="is the only one that has every committed message"):
        changes.forget_directory(group, directory(2))
    assert changes.elect(group, incarnation(2), alive(2)).isr == (directory(2),)


def test_a_replica_is_added_and_removed() -> None:
    group = changes.add_replica(led(), 4)
    assert (group.replicas, group.adding) == ((1, 2, 3, 4), (4,))
    group = changes.add_to_isr(group, incarnation(1), incarnation(4))
    assert group.adding == ()
    with pytest.raises(ChangeRefused, match=r"node 1 leads\. Transfer"):
        changes.remove_replica(group, 1)
    group = changes.remove_replica(group, 2)
    with pytest.raises(ChangeRefused, match="node 2 is being removed"):
        changes.add_to_isr(changes.remove_from_isr(group, incarnation(1), alive(2)), incarnation(1), incarnation(2))
    group = changes.drop_replica(group, incarnation(1), 2, directory(2))
    assert (group.replicas, group.removing) == ((1, 3, 4), ())
    assert directory(2) not in group.isr


def test_a_removal_waits_while_too_few_are_in_sync() -> None:
    group = changes.remove_replica(led(isr=(1, 2)), 2)
    with pytest.raises(ChangeRefused, match=r"the ISR has 1 members, and min\.insync\.replicas is 2"):
        changes.drop_replica(group, incarnation(1), 2, directory(2))
    with pytest.raises(ChangeRefused, match="without node 3 the group has 1 replicas"):
        changes.remove_replica(group, 3)


def test_a_replica_that_is_dropped_leaves_the_elr_too() -> None:
    group = replace(led(isr=(1,), elr=(2, 3)), removing=(3,))
    assert changes.drop_replica(group, incarnation(1), 3, directory(3)).elr == (directory(2),)


def test_a_transfer_goes_to_a_node_that_is_in_sync() -> None:
    group = changes.request_transfer(led(isr=(1, 2)), 2, directory(2))
    assert group.transfer_to == 2
    after = changes.hand_over(group, incarnation(1), incarnation(2, 3))
    assert (after.leader, after.epoch, after.transfer_to, after.isr) == (incarnation(2, 3), 5, None, group.isr)
    for node, said in ((1, "leads already"), (3, "is not in sync"), (9, "is not a replica")):
        with pytest.raises(ChangeRefused, match=f"node {node} {said}"):
            changes.request_transfer(group, node, directory(node))
