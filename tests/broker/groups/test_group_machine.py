"""A group against a simple model: members come, sync, beat, leave, fall silent; storage is slow or fails.

What must hold whatever happens: every join and sync is answered exactly once and in the end; a generation is stable
only with an assignment that its leader brought and that was stored; nobody is told an assignment of another generation;
a member of the group is known to it, and one that left is not.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule
from tests.broker.groups.stage import Stage, join_request
from tests.longer import examples

from headrace.broker.groups.group import Group
from headrace.broker.groups.protocol import Joined, Leaver, Problem, State, Synced, SyncRequest

PROTOCOLS = [
    (("range", b"1"),),
    (("range", b"2"), ("cooperative-sticky", b"2")),
    (("cooperative-sticky", b"3"), ("range", b"3")),
]


@dataclass(eq=False)
class Client:
    """A consumer as it sees itself."""

    instance_id: str | None
    protocols: tuple[tuple[str, bytes], ...]
    member_id: str = ""
    generation: int = -1
    leads: tuple[str, ...] = ()
    joins: list[asyncio.Future[Joined]] = field(default_factory=list)
    syncs: list[tuple[int, asyncio.Future[Synced]]] = field(default_factory=list)


class GroupMachine(RuleBasedStateMachine):
    clients = Bundle("clients")

    def __init__(self) -> None:
        super().__init__()
        self.stage = Stage(max_size=4)
        self.group = Group("g", self.stage)
        self.all: list[Client] = []
        self.brought: dict[int, dict[str, bytes]] = {}

    @rule(
        target=clients,
        instance_id=st.sampled_from([None, None, "i", "j"]),
        protocols=st.sampled_from(PROTOCOLS),
    )
    def appear(self, instance_id: str | None, protocols: tuple[tuple[str, bytes], ...]) -> Client:
        client = Client(instance_id, protocols)
        self.all.append(client)
        return client

    @rule(client=clients, known=st.booleans(), skip=st.booleans())
    def join(self, client: Client, known: bool, skip: bool) -> None:
        future = self.group.join(
            join_request(
                client.member_id,
                instance_id=client.instance_id,
                protocols=client.protocols,
                needs_known_id=known,
                may_skip_assignment=skip,
            )
        )
        client.joins.append(future)

    @rule(client=clients)
    def sync(self, client: Client) -> None:
        if not client.member_id:
            return
        assignments = {each: f"{client.generation}:{each}".encode() for each in client.leads}
        if client.leads and client.generation == self.group.generation:
            self.brought[client.generation] = assignments
        request = SyncRequest(
            member_id=client.member_id,
            generation=client.generation,
            instance_id=client.instance_id,
            assignments=tuple(assignments.items()),
        )
        client.syncs.append((client.generation, self.group.sync(request)))

    @rule(client=clients)
    def beat(self, client: Client) -> None:
        problem = self.group.heartbeat(client.member_id, client.instance_id, client.generation)
        if problem is Problem.NONE:
            assert client.generation == self.group.generation
            assert self.group.state in (State.STABLE, State.COMPLETING)

    @rule(client=consumes(clients))
    def leave(self, client: Client) -> None:
        (problem,) = self.group.leave([Leaver(client.member_id, client.instance_id)])
        if problem is Problem.NONE:
            assert client.member_id not in self.group.roster

    @rule(seconds=st.sampled_from([0.5, 4.0, 11.0, 61.0]))
    def wait(self, seconds: float) -> None:
        self.stage.loop.advance(seconds)

    @rule(hold=st.booleans(), fails=st.booleans())
    def storage(self, hold: bool, fails: bool) -> None:
        self.stage.hold = hold
        self.stage.failing = Problem.COORDINATOR_NOT_AVAILABLE if fails else Problem.NONE
        self.stage.settle()

    @invariant()
    def answers_fit(self) -> None:
        for client in self.all:
            for future in [each for each in client.joins if each.done()]:
                client.joins.remove(future)
                self.hear_join(client, future.result())
            for generation, sync in [each for each in client.syncs if each[1].done()]:
                client.syncs.remove((generation, sync))
                answer = sync.result()
                if answer.problem is Problem.NONE and not client.instance_id:
                    # A static member may be handed what its former self was assigned.
                    given = self.brought[generation]
                    assert answer.assignment == given.get(client.member_id, b"")

    def hear_join(self, client: Client, answer: Joined) -> None:
        if answer.problem is Problem.MEMBER_ID_REQUIRED:
            client.member_id = answer.member_id
        elif answer.problem is Problem.NONE:
            client.member_id = answer.member_id
            client.generation = answer.generation
            leads = answer.leader == answer.member_id and not answer.skip_assignment
            client.leads = tuple(each.member_id for each in answer.members) if leads else ()
            assert answer.generation <= self.group.generation
            if leads:
                assert answer.member_id in client.leads
        elif answer.problem in (Problem.UNKNOWN_MEMBER_ID, Problem.FENCED_INSTANCE_ID):
            client.member_id = ""

    @invariant()
    def counts_fit(self) -> None:
        roster = self.group.roster
        # While a rebalance is under way only those who have joined it count.
        assert roster.joining <= self.stage.max_size
        assert roster.joining == sum(each.join is not None for each in roster)
        assert roster.size == sum(len(n) + len(m) for each in roster for n, m in each.protocols.items())
        assert (roster.leader is None) == (not roster.members)
        assert roster.leader is None or roster.leader in roster
        if self.group.state is State.EMPTY:
            assert not roster.members
        if self.group.state is State.STABLE:
            assert all(each.join is None and each.sync is None for each in roster)
            assert self.group.generation in self.brought

    @invariant()
    def a_restart_fences_no_other(self) -> None:
        """A static member that knows its id goes by it in what is stored, or is unknown there."""
        stored = {} if self.stage.record is None else {m.instance_id: m.member_id for m in self.stage.record.members}
        for client in self.all:
            if client.instance_id and client.member_id == self.group.roster.holder(client.instance_id):
                assert stored.get(client.instance_id, client.member_id) == client.member_id

    @invariant()
    def nothing_is_lost(self) -> None:
        """Every open future is known to the group, which alone can answer it."""
        known = {id(each.join) for each in self.group.roster} | {id(each.sync) for each in self.group.roster}
        # Joins of static members that return, and of those with them, wait for the storage.
        if not self.stage.waiting:
            assert all(id(each) in known for client in self.all for each in client.joins)
        assert all(id(sync) in known for client in self.all for _, sync in client.syncs)

    def teardown(self) -> None:
        self.stage.hold, self.stage.failing = False, Problem.NONE
        self.stage.settle()
        for _ in range(8):
            self.stage.loop.advance(400)
        self.answers_fit()
        assert all(not client.joins and not client.syncs for client in self.all), "somebody waits for ever"
        assert self.group.state is State.EMPTY, "everybody has been silent for long"
        assert self.stage.loop.armed == 0


TestGroupMachine = GroupMachine.TestCase
TestGroupMachine.settings = settings(max_examples=examples(150), stateful_step_count=40, deadline=None)
