"""Any heartbeats in any order: a partition is never with two members, and whoever is heard of arrives at its target."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.broker.groups.consumer.stage import Client, ConsumerStage, refusal, settle

from headrace.broker.groups.consumer.places import each
from headrace.broker.groups.protocol import Problem, State

NAMES = st.sampled_from("abcd")
SUBSCRIPTIONS = st.sampled_from([("t",), ("u",), ("t", "u"), ("t", "nowhere")])


class ConsumerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.stage = ConsumerStage(t=5, u=3)
        self.clients: dict[str, Client] = {}

    @rule(name=NAMES, topics=SUBSCRIPTIONS, assignor=st.sampled_from([None, "range", "uniform"]))
    def join(self, name, topics, assignor) -> None:
        client = self.clients.setdefault(name, Client(self.stage, name))
        client.wishes |= {"topics": topics, "assignor": assignor}
        client.join()

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
            client.epoch, client.told = epoch, told

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def leave(self, data) -> None:
        client = self._somebody(data)
        assert refusal(client.leave) in (Problem.NONE, Problem.UNKNOWN_MEMBER_ID)
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
        self.clients = {name: each for name, each in self.clients.items() if name in self.stage.group.members}

    @rule()
    def arrive(self) -> None:
        """Everybody is heard of until nothing changes."""
        living = [client for client in self.clients.values() if self._is_heard(client)]
        settle(*living)
        for name in set(self.stage.group.members) - {client.member_id for client in living}:
            Client(self.stage, name).leave()
        settle(*living)
        assert self.stage.group.state is (State.STABLE if living else State.EMPTY)
        for member in self.stage.group.describe().members:
            assert member.assignment == member.target == self.clients[member.member_id].has

    @invariant()
    def nobody_shares(self) -> None:
        seen = set()
        for member in self.stage.group.members.values():
            for place in (*each(member.position.assigned), *each(member.position.revoking)):
                assert place not in seen
                seen.add(place)

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
