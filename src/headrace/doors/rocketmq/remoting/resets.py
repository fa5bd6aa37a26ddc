"""Positions of groups that an administrator has moved, until the members have taken notice.

A member goes on from where it is and commits that, until it is told otherwise. So a queue of a group with members is
remembered from its reset on: pulls elsewhere are answered with the new offset, and commits are ignored, until a member
pulls at that offset.
"""

from __future__ import annotations

from headrace.log.interface import Partition


class Resets:
    """The queues whose members do not know yet."""

    def __init__(self) -> None:
        self._offsets: dict[str, dict[Partition, int]] = {}

    def put(self, group: str, partition: Partition, offset: int) -> None:
        """The members of a group shall go on from an offset."""
        self._offsets.setdefault(group, {})[partition] = offset

    def find(self, group: str, partition: Partition) -> int | None:
        """Where a group shall go on, if it does not know yet."""
        found = self._offsets.get(group)
        return None if found is None else found.get(partition)

    def drop(self, group: str, partition: Partition) -> None:
        """A member goes on from there."""
        found = self._offsets.get(group)
        if found is not None and found.pop(partition, None) is not None and not found:
            del self._offsets[group]

    def drop_group(self, group: str) -> None:
        """Members that come later ask for their positions."""
        self._offsets.pop(group, None)

    def groups(self) -> list[str]:
        """The groups whose members do not know yet."""
        return list(self._offsets)
