"""One member of a classic group: its identity, its protocols, and which of its requests wait for the group."""

from __future__ import annotations

from asyncio import Future
from dataclasses import dataclass

from headrace.broker.groups.deadline import Deadline
from headrace.broker.groups.protocol import Joined, Problem, Synced


@dataclass(slots=True, eq=False)
class Member:
    """A member. It awaits a join or a sync while the future of that name is there."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: dict[str, bytes]
    """Metadata by protocol name, the most wanted first."""
    assignment: bytes = b""
    is_new: bool = False
    """It waits in its first join and has no id yet to send heartbeats with."""
    join: Future[Joined] | None = None
    sync: Future[Synced] | None = None
    session: Deadline | None = None

    def metadata(self, protocol_name: str | None) -> bytes:
        """The member's metadata for the protocol that the group chose."""
        return self.protocols.get(protocol_name or "", b"")

    def answer_sync(self, answer: Synced) -> bool:
        """Answer a waiting sync; whether there was one."""
        future, self.sync = self.sync, None
        if future is None:
            return False
        if not future.done():
            future.set_result(answer)
        return True

    def fence(self, problem: Problem) -> None:
        """Refuse whatever waits."""
        if self.join is not None and not self.join.done():
            self.join.set_result(Joined(problem=problem, member_id=self.member_id))
        self.join = None
        self.answer_sync(Synced(problem=problem))
