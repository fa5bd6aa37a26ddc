"""The groups that one client is in: its heartbeats bring it in, the end of its connection takes it out."""

from __future__ import annotations

from headrace.broker.groups.rocketmq_coordinator import RocketMqCoordinator
from headrace.broker.groups.rocketmq_group import RocketMqGroup, RocketMqMember


class Memberships:
    """The groups of a client."""

    def __init__(self, groups: RocketMqCoordinator) -> None:
        self._groups = groups
        self._joined: dict[str, tuple[RocketMqGroup, RocketMqMember]] = {}
        self._is_closed = False

    async def join(self, group_id: str, member: RocketMqMember) -> None:
        """Be a member of a group, as this heartbeat describes it. Raises GroupError."""
        group = await self._groups.join(group_id, member)
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
