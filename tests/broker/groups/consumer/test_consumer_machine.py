"""Any heartbeats in any order: a partition is never with two members, and whoever is heard of arrives at its target."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.broker.groups.consumer.stage import Client, ConsumerStage, refusal, settle

from headrace.broker.groups.consumer.places import each
from headrace.broker.groups.protocol import Leaver, Problem, State

NAMES = st.sampled_from("abcd")
SUBSCRIPTIONS = st.sampled_from([("t",), ("u",), ("t", "u"), ("t", "nowhere")])


class ConsumerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.stage = ConsumerStage(t=5, u=3)
        self.clients: dict[str, Client] = {}

    @rule(
        name=NAMES,
        instance=st.sampled_from([None, None, "i", "j"]),
        topics=SUBSCRIPTIONS,
        assignor=st.sampled_from([None, "range", "uniform"]),
    )
    def join(self, name, instance, topics, assignor) -> None:
        client = self.clients.get(name) or Client(self.stage, name)
        before, client.instance_id = client.instance_id, instance
        client.wishes |= {"topics": topics, "assignor": assignor}
        if refusal(client.join) is Problem.NONE:
            self.clients[name] = client
            client.instance_id = self.stage.group.roster.members[name].traits.instance_id
        else:
            client.instance_id = before

    @precondition(lambda self: any(client.instance_id for client in self.clients.values()))
    @rule(data=st.data())
    def go_for_a_while(self, data) -> None:
        names = sorted(name for name, client in self.clients.items() if client.instance_id)
        client = self.clients.pop(data.draw(st.sampled_from(names)))
        assert refusal(lambda: client.leave(-2)) in (
            Problem.NONE,
            Problem.UNKNOWN_MEMBER_ID,
            Problem.FENCED_INSTANCE_ID,
        )

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), tells=st.booleans(), obeys=st.booleans(), topics=st.none() | SUBSCRIPTIONS)
    def beat(self, data, tells, obeys, topics) -> None:
        client = self._somebody(data)
        before = client.epoch
        if refusal(lambda: client.beat(tells=tells, topics=topics)) is not Problem.NONE:
            assert client.epoch == before
            self.clients.pop(client.member_id)
        elif obeys:
            client.obey()

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def an_answer_is_lost(self, data) -> None:
        client = self._somebody(data)
        epoch, told = client.epoch, client.told
        if refusal(client.beat) is Problem.NONE:
            client.epoch, client.told, client.unheard = epoch, told, True

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def leave(self, data) -> None:
        client = self._somebody(data)
        assert refusal(client.leave) in (Problem.NONE, Problem.UNKNOWN_MEMBER_ID, Problem.FENCED_INSTANCE_ID)
        del self.clients[client.member_id]

    @rule(partitions=st.integers(1, 7))
    def topic(self, partitions) -> None:
        self.stage.make("u", partitions)

    @rule()
    def start(self) -> None:
        self.stage.group.kill()
        self.stage.group = self.stage.replayed()
        self.stage.group.resume()

    @rule(seconds=st.sampled_from([1, 30, 46, 61]))
    def time(self, seconds) -> None:
        self.stage.loop.advance(seconds)
        self.clients = {name: each for name, each in self.clients.items() if name in self.stage.group.roster.members}

    @rule()
    def arrive(self) -> None:
        """Everybody is heard of until nothing changes."""
        for name in set(self.stage.group.roster.members) - set(self.clients):
            self.stage.group.leave([Leaver(name)])
        living = [client for client in self.clients.values() if self._is_heard(client)]
        settle(*living)
        assert self.stage.group.state is (State.STABLE if living else State.EMPTY)
        for member in self.stage.group.describe().members:
            assert member.assignment == member.target == self.clients[member.member_id].has

    @invariant()
    def nobody_shares(self) -> None:
        seen = set()
        for member in self.stage.group.roster:
            for place in (*each(member.position.assigned), *each(member.position.revoking)):
                assert place not in seen
                seen.add(place)

    @invariant()
    def what_is_counted_is_true(self) -> None:
        group = self.stage.group
        held = {
            member.traits.instance_id: name
            for name, member in group.roster.members.items()
            if member.traits.instance_id
        }
        assert group.roster._by_instance == held
        assert group.roster.size == sum(member.traits.size for member in group.roster)
        owners = {
            place: member.member_id
            for member in group.roster
            for place in (*each(member.position.assigned), *each(member.position.revoking))
        }
        assert {place: owner for place, (owner, _) in group.roster.owners.items()} == owners

    @invariant()
    def all_is_written(self) -> None:
        found, known = self.stage.replayed().describe(), self.stage.group.describe()
        by_id = {member.member_id: member for member in known.members}
        assert {member.member_id: member for member in found.members} == by_id
        assert (found.epoch, found.assignment_epoch) == (known.epoch, known.assignment_epoch)

    def teardown(self) -> None:
        self.stage.group.kill()

    def _somebody(self, data) -> Client:
        return self.clients[data.draw(st.sampled_from(sorted(self.clients)))]

    def _is_heard(self, client: Client) -> bool:
        if refusal(client.beat) is not Problem.NONE:
            client.join()
        client.obey()
        return True


TestConsumerMachine = ConsumerMachine.TestCase
