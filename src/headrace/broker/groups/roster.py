"""Who is in a group: members in the order in which they joined, and what is counted about them.

The counts (how many know a protocol, how many wait in a join, how many bytes they carry) are kept as members come and
go, so that a group of ten thousand judges a join without looking at each of them.
"""

from __future__ import annotations

from asyncio import Future
from collections import Counter

from headrace.broker.groups.member import Member
from headrace.broker.groups.members import Members
from headrace.broker.groups.protocol import Joined, JoinedMember, Problem


class Roster(Members[Member]):
    """The members of one group and their leader."""

    def __init__(self) -> None:
        super().__init__()
        self.leader: str | None = None
        self.joining = 0
        """How many wait in a join."""
        self._by_protocol: Counter[str] = Counter()

    def enter(self, member: Member) -> None:
        """Take a member in; the first one leads."""
        self._put(member)
        self._count(member.protocols, 1)
        if self.leader is None:
            self.leader = member.member_id

    def drop(self, member: Member, problem: Problem) -> None:
        """Take a member out and refuse whatever of it waits."""
        self._count(member.protocols, -1)
        self._remove(member)
        if member.session is not None:
            member.session.cancel()
        if member.join is not None:
            self.joining -= 1
        member.fence(problem)
        if self.leader == member.member_id:
            self.leader = next(iter(self.members), None)

    def replace(self, old: Member, new: Member) -> None:
        """Put a returning instance in the place of its predecessor, whose holder is fenced."""
        order, leader = list(self.members), self.leader
        new.assignment = old.assignment
        self.drop(old, Problem.FENCED_INSTANCE_ID)
        self.enter(new)
        places = (new.member_id if each == old.member_id else each for each in order)
        self.members = {place: self.members[place] for place in places}
        self.leader = new.member_id if leader == old.member_id else leader

    def change_protocols(self, member: Member, protocols: dict[str, bytes]) -> None:
        """A member joins again with other metadata."""
        self._count(member.protocols, -1)
        member.protocols = protocols
        self._count(protocols, 1)

    def await_join(self, member: Member, answer: Future[Joined]) -> None:
        """Let a join wait. An earlier one of the same member, whose client has given up on it, is answered."""
        if member.join is None:
            self.joining += 1
        elif not member.join.done():
            member.join.set_result(Joined(problem=Problem.REBALANCE_IN_PROGRESS, member_id=member.member_id))
        member.join = answer

    def knows_all(self, protocol: str) -> bool:
        """Whether every member knows the protocol."""
        return self._by_protocol[protocol] == len(self.members)

    def select_protocol(self) -> str:
        """Each member votes for the first of its protocols that all members know."""
        votes: Counter[str] = Counter()
        for member in self:
            for name in member.protocols:
                if self.knows_all(name):
                    votes[name] += 1
                    break
        return votes.most_common(1)[0][0] if votes else ""

    def elect_leader(self) -> bool:
        """Keep the leader if it has rejoined, or take the first member that has; False where none has."""
        leader = self.members.get(self.leader or "")
        if leader is None or leader.join is None:
            joined = next((each.member_id for each in self if each.join is not None), None)
            if joined is None:
                return False
            self.leader = joined
        return True

    def for_leader(self, protocol: str | None) -> tuple[JoinedMember, ...]:
        """All members, as the answer to the leader's join lists them."""
        return tuple(
            JoinedMember(member_id=each.member_id, instance_id=each.instance_id, metadata=each.metadata(protocol))
            for each in self
        )

    def rebalance_seconds(self) -> float:
        """How long the slowest member may take to rejoin."""
        return max((each.rebalance_timeout_ms for each in self), default=0) / 1000

    def _count(self, protocols: dict[str, bytes], by: int) -> None:
        for name, metadata in protocols.items():
            self.size += by * (len(name) + len(metadata))
            self._by_protocol[name] += by
            if not self._by_protocol[name]:
                del self._by_protocol[name]
