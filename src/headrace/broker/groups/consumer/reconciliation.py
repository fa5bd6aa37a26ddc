"""How one member gets from what it has to what it shall have.

A partition is never with two members: what a member shall lose, it first gives back, and stays in its epoch until its
heartbeat no longer names it; only then does it enter the target's epoch and get what is free. What others still have it
gets with a later heartbeat. So members follow the group one by one, and those that nothing changes for do not stop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from uuid import UUID

from headrace.broker.groups.consumer.consumer_member import Position, Step
from headrace.broker.groups.consumer.places import NOWHERE, Places, cut, join, less, meet


def follow(
    position: Position,
    target_epoch: int,
    target: Places,
    reads: frozenset[UUID],
    owned: Places | None,
    taken: Callable[[UUID, int], bool],
) -> Position:
    """Where a member is after a heartbeat that names what it owns (None: as before). `reads` are the topics that it
    subscribes to, of which the target may be behind; `taken` is whether a member, be it this one, has a partition
    or has yet to give it back."""
    unread = {topic: indexes for topic, indexes in position.assigned.items() if topic not in reads}
    if position.step is Step.STABLE and position.epoch == target_epoch and not unread:
        return position
    if position.step is Step.UNREVOKED and (owned is None or meet(owned, position.revoking)):
        if not unread:
            return position
        return replace(position, assigned=less(position.assigned, unread), revoking=join(position.revoking, unread))
    target = {topic: indexes for topic, indexes in target.items() if topic in reads}
    kept = cut(position.assigned, target)
    lost = less(position.assigned, target)
    if lost and (owned is None or meet(owned, lost)):
        return Position(position.epoch, position.epoch, Step.UNREVOKED, kept, lost)
    # What it had to give back is free as of this heartbeat.
    returned = join(position.revoking, lost)
    wanted = less(target, kept)
    free: dict[UUID, frozenset[int]] = {}
    waits = False
    for topic, indexes in wanted.items():
        own = returned.get(topic, frozenset())
        found = frozenset(index for index in indexes if index in own or not taken(topic, index))
        waits = waits or len(found) < len(indexes)
        if found:
            free[topic] = found
    step = Step.UNRELEASED if waits else Step.STABLE
    following = Position(target_epoch, position.epoch, step, join(kept, free), NOWHERE)
    same = (following.epoch, following.step, following.assigned) == (position.epoch, position.step, position.assigned)
    return position if same and not position.revoking else following
