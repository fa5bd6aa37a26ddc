"""Leaving a group in good order, before a stop."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import structlog

from headrace.cluster import changes
from headrace.cluster.errors import ChangeRefused

if TYPE_CHECKING:
    from headrace.cluster.node import Node
    from headrace.cluster.records import Incarnation

logger = structlog.get_logger("headrace.cluster")

# What it takes at most.
RETIRE_S = 5.0
STEP_S = 0.02
STOPS = "the node stops"


async def retire(node: Node, me: Incarnation) -> None:
    """A leader hands over, or resigns, and a follower leaves the ISR. What cannot be done in time is left to the
    others. The node acts on nothing meanwhile but this."""
    try:
        async with asyncio.timeout(RETIRE_S):
            await _retire(node, me)
    except TimeoutError:
        logger.warning("the node stops without having left its group", seconds=RETIRE_S)
    node.step_down(STOPS)


async def _retire(node: Node, me: Incarnation) -> None:
    group = node.group
    if group is None:
        return
    if node.leadership is not None:
        last = node.journal.last.sequence
        await node.transfers.hand_over_and_stop(group)
        if node.leadership is not None:
            node.step_down(STOPS)
            await node.resign()
            return
        # It is left with what it has once it has shown that it leads.
        while node.following is None or (beat := node.following.heartbeat) is None or beat.committed <= last:
            if node.group is not None and node.group.leader not in (None, me):
                node.follow(node.group)
            await asyncio.sleep(STEP_S)
    following = node.following
    if following is None or not following.is_open:
        return  # its leader may be gone, and this node the last that has everything
    following.close()
    with suppress(ChangeRefused):
        await node.metadata.change(lambda group: changes.leave_isr(group, me))
