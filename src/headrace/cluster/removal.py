"""Ending the removal of a node: the leader takes it out of the ISR and of the group, in one change of the record."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.cluster.records import Group


def next_removal(group: Group, me: int, numbers: Mapping[str, int]) -> tuple[int, str | None] | None:
    """A node that can leave now, and its directory; `numbers` are the nodes by their directories. One without which the
    ISR would be too small stays until another is in sync, and a leader until it leads no more."""
    for node in group.removing:
        directory = next((each for each, number in numbers.items() if number == node), None)
        left = [each for each in group.isr if each != directory]
        if node != me and (len(left) == len(group.isr) or len(left) >= group.min_isr):
            return node, directory
    return None


def may_join(group: Group, node: int | None) -> bool:
    """Whether a follower that has caught up belongs into the ISR."""
    return node in group.replicas and node not in group.removing
