"""The groups that one client is in: its heartbeats bring it in, the end of its connection takes it out."""

from __future__ import annotations

from headrace.broker.groups.rocketmq_coordinator import RocketMqCoordinator
from headrace.broker.groups.rocketmq_group import RocketMqGroup, RocketMqMember
from headrace.doors.rocketmq.codes import Code
from headrace.doors.rocketmq.errors import ResponseError

# Of one client.
GROUPS_MAX = 1_000


class Memberships:
    """The groups of a client."""

    def __init__(self, groups: RocketMqCoordinator) -> None:
        self._groups = groups
        self._joined: dict[str, tuple[RocketMqGroup, RocketMqMember]] = {}
        self._joining = 0
        self._is_closed = False

    async def join(self, group_id: str, member: RocketMqMember) -> None:
        """Be a member of a group, as this heartbeat describes it. Raises GroupError, or ResponseError where the client
        is in too many."""
        before = self._joined.get(group_id)
        if before is None and len(self._joined) + self._joining >= GROUPS_MAX:
            raise ResponseError(Code.SYSTEM_BUSY, f"a client is in at most {GROUPS_MAX} groups. Use another client.")
        if before is not None and before[1].client_id != member.client_id:
            # It is another client that has taken over the connection.
            self.leave(group_id)
        self._joining += 1
        try:
            group = await self._groups.join(group_id, member)
        finally:
            self._joining -= 1
        if self._is_closed:
            # The connection was lost meanwhile.
            self._groups.leave(group, member)
        else:
            self._joined[group_id] = group, member

    def find(self, group_id: str) -> RocketMqMember | None:
        """What the client is in a group."""
        found = self._joined.get(group_id)
        return None if found is None else found[1]

    def leave(self, group_id: str) -> None:
        """Leave a group."""
        found = self._joined.pop(group_id, None)
        if found is not None:
            self._groups.leave(*found)

    def leave_all(self) -> None:
        """The connection is lost."""
        self._is_closed = True
        for group_id in list(self._joined):
            self.leave(group_id)
