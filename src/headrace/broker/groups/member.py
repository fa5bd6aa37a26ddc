"""One member of a group: who it is, what it can do, and which of its requests wait for the group."""

from __future__ import annotations

from asyncio import Future

from headrace.broker.groups.deadline import Deadline
from headrace.broker.groups.protocol import Joined, Problem, Synced


class Member:
    """A member. It awaits a join or a sync while the future of that name is there."""

    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "instance_id",
        "is_new",
        "join",
        "member_id",
        "protocols",
        "rebalance_timeout_ms",
        "session",
        "session_timeout_ms",
        "sync",
    )

    def __init__(
        self,
        member_id: str,
        instance_id: str | None,
        client_id: str,
        client_host: str,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        protocols: dict[str, bytes],
    ) -> None:
        self.member_id = member_id
        self.instance_id = instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.session_timeout_ms = session_timeout_ms
        self.protocols = protocols
        """Metadata by protocol name, the most wanted first."""
        self.assignment = b""
        self.is_new = False
        """It waits in its first join and has no id yet to send heartbeats with."""
        self.join: Future[Joined] | None = None
        self.sync: Future[Synced] | None = None
        self.session: Deadline | None = None

    def metadata(self, protocol_name: str | None) -> bytes:
        """What the member said about itself for the protocol that the group chose."""
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
