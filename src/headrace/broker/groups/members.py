"""The members of a group, whichever protocol they speak: by member id, by instance id, and what they carry.

A static member has an instance id, which one member id at a time goes by: a request under another one is fenced.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

from headrace.broker.groups.protocol import Leaver, Problem

# What all members of a group may make it carry: the record that stores a group must fit into one batch of its topic.
GROUP_BYTES_MAX = 8 << 20


class Named(Protocol):
    """What a member is known by."""

    @property
    def member_id(self) -> str: ...
    @property
    def instance_id(self) -> str | None: ...


M = TypeVar("M", bound=Named)


class Members(Generic[M]):
    """Members in the order in which they joined."""

    def __init__(self) -> None:
        self.members: dict[str, M] = {}
        self.size = 0
        """Bytes of all that they carry."""
        self._by_instance: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self.members)

    def __iter__(self) -> Iterator[M]:
        return iter(self.members.values())

    def __contains__(self, member_id: object) -> bool:
        return member_id in self.members

    def holder(self, instance_id: str | None) -> str | None:
        """The member id that an instance goes by now."""
        return None if instance_id is None else self._by_instance.get(instance_id)

    def judge(self, member_id: str, instance_id: str | None) -> Problem:
        """Whether there is such a member, and it is the one that holds its instance id."""
        if instance_id is not None:
            holder = self.holder(instance_id)
            if holder is None:
                return Problem.UNKNOWN_MEMBER_ID
            if holder != member_id:
                return Problem.FENCED_INSTANCE_ID
        return Problem.NONE if member_id in self.members else Problem.UNKNOWN_MEMBER_ID

    def id_of(self, leaver: Leaver) -> str:
        """The member id of a leaver, which an administrator may name by its instance id alone."""
        return leaver.member_id or self.holder(leaver.instance_id) or ""

    def _put(self, member: M) -> None:
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self._by_instance[member.instance_id] = member.member_id

    def _remove(self, member: M) -> None:
        del self.members[member.member_id]
        if self.holder(member.instance_id) == member.member_id:
            del self._by_instance[member.instance_id or ""]
