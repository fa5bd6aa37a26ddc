"""A planned change of leaders, as the one that leads carries it out.

The successor has nothing left to copy when it is named, and clients wait for a few messages between nodes, not for a
lease:

1. Wait until the successor has everything but what is under way.
2. Have the broker flush its state, and append nothing behind it: appends are refused from then on.
3. Wait until everything is committed and on the successor's device, and let followers know.
4. Swap the record.

Where a step takes too long, appends go on as if nothing had been.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from headrace.cluster.leadership import Leadership
from headrace.cluster.records import Incarnation
from headrace.errors import StorageFailed, TransferFailed
from headrace.log.replicated_journal import ReplicatedJournal

# For how long appends are refused: flushing the state, and then waiting for the successor.
PAUSE_SECONDS = 1.0
# The same where the node is about to stop: appends that are refused for longer cost less than no successor.
STOP_PAUSE_SECONDS = 2.0


async def _nothing() -> None:
    """A node without a broker has no state."""


@dataclass(slots=True)
class Steps:
    """What a handover asks of those above the node."""

    pause: Callable[[], Awaitable[None]] = _nothing
    """Flush what is not in the log yet, and append nothing behind it."""
    resume: Callable[[], None] = lambda: None
    """Take appends again."""


async def hand_over(
    leadership: Leadership,
    journal: ReplicatedJournal,
    to: str,
    steps: Steps,
    patience_s: float,
    pause_s: float,
    swap: Callable[[Incarnation], Awaitable[bool]],
) -> None:
    """Have the node with the directory `to` lead; `swap` puts its incarnation into the group's record. Raises
    TransferFailed."""
    target, answers = journal.last.sequence, leadership.answers(to)
    # One that has everything may be gone since: it must answer once more.
    leadership.tell_committed()
    try:
        async with asyncio.timeout(patience_s):
            await leadership.wait_until(
                lambda: leadership.acknowledged(to) >= target and leadership.answers(to) > answers
            )
    except TimeoutError:
        raise TransferFailed(f"the node that is to lead did not catch up within {patience_s:g} s") from None
    try:
        async with asyncio.timeout(pause_s):
            await steps.pause()
        async with asyncio.timeout(pause_s):
            await leadership.wait_until(
                lambda: min(journal.committed, leadership.acknowledged(to)) >= journal.last.sequence
            )
        successor = leadership.follower(to)
        if successor is None:
            raise TransferFailed("the node that is to lead has gone")
        leadership.tell_committed()
        if not await swap(successor):
            raise TransferFailed("etcd did not take the new leader")
    except TimeoutError:
        raise TransferFailed(f"what was left to do took more than {pause_s:g} s") from None
    except (StorageFailed, OSError) as error:
        raise TransferFailed(f"the broker's state could not be flushed: {error}") from error
    finally:
        if not leadership.is_over:
            steps.resume()
