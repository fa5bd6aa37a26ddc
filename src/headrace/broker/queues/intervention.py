"""Single messages that an operator settles, gives back or rejects, also those in flight.

The consumer that has a message loses it: what it answers later comes too late, as after a timeout. A message that was
not delivered yet lies above the queue's cursor. To get at it, the cursor passes what lies before it just as handing
it out would: by the queue's filter and by its order of keys. That is bounded, because each offset below the cursor that
is not settled takes memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from headrace.broker.queues.ledger import BLOCKED, CONDEMNED, DONE
from headrace.broker.queues.peek import Walk

if TYPE_CHECKING:
    from headrace.broker.queues.lane import QueueLane
    from headrace.broker.queues.queue import Queue
    from headrace.broker.queues.queues import Queues
    from headrace.broker.security import Session

# So far above the cursor a message may lie.
REACH_MAX = 10_000
OPERATOR = "operator"


class Act(StrEnum):
    """What is done with a message."""

    SETTLE = "settle"
    REQUEUE = "requeue"
    REJECT = "reject"


class Outcome(NamedTuple):
    """What became of it."""

    is_done: bool
    reason: str = ""
    """Why not."""


DONE_SO = Outcome(True)
NOT_THERE = Outcome(False, "it is not in the queue: it was settled before, or the queue does not take it")


async def intervene(
    queues: Queues,
    queue: Queue,
    places: Sequence[tuple[int, int]],
    act: Act,
    delay_ms: int = 0,
    error: str = "",
    session: Session | None = None,
) -> list[Outcome]:
    """Do something with messages, by lane and offset, durably. `delay_ms` is of REQUEUE, `error` of REJECT: what the
    dead letter gives as the reason. Raises what the log raises."""
    by = OPERATOR if session is None or not session.user else f"{OPERATOR} {session.user}"
    outcomes = []
    for number, offset in places:
        lane = queue.lanes.get(number)
        if lane is None or not lane.open or queue.gone:
            outcomes.append(Outcome(False, "its partition is not there, or offline"))
            continue
        refused = await _reach(queue, lane, offset)
        # Nothing is being written of the lane then, and nothing comes between that and what follows.
        await queues.state_writer.until_quiet(lane)
        outcomes.append(refused or _act(queues, queue, lane, offset, act, delay_ms, error, by))
    done = [f"{number}/{offset}" for (number, offset), each in zip(places, outcomes, strict=True) if each.is_done]
    if done:
        await queues.flush()
        queues.report(session, act.value, queue, " ".join(done))
    return outcomes


def _act(
    queues: Queues, queue: Queue, lane: QueueLane, offset: int, act: Act, delay_ms: int, error: str, by: str
) -> Outcome:
    ledger = lane.ledger
    state, attempts, _ = ledger.state_of(offset)
    if state == DONE or offset >= ledger.cursor:
        return NOT_THERE
    if act is Act.REQUEUE and state == BLOCKED:
        return Outcome(False, "it waits for another message of its key: settle that one first")
    if state == CONDEMNED and act is Act.REJECT:
        return Outcome(False, f"it is dead, and on its way to {queue.dead_letter_topic}")
    _take_away(queue, lane, offset)
    if act is Act.SETTLE:
        queue.drop(lane, offset)
        lane.release_key(offset)
        queues.deliveries.note(queue, "emptied", lane.index, [(offset, offset)], consumer=by)
        queue.moved_up(lane)
        queue.kick()
    elif act is Act.REQUEUE:
        due = queue.runtime.clock.now_ms() + delay_ms if delay_ms else 0
        ledger.put_back(offset, due)
        queue.returned(lane, offset, attempts, due, delay_ms, "", by)
    else:
        if state != BLOCKED:
            ledger.put_back(offset, 0)
        queue.keep_error(lane, offset, error or f"rejected by {by}")
        ledger.condemn(offset)
        queue.changed(lane)
    return DONE_SO


def _take_away(queue: Queue, lane: QueueLane, offset: int) -> None:
    """A consumer that has a message loses it."""
    consumer = queue.consumers.get(lane.ledger.owner_of(offset))
    if consumer is not None:
        consumer.in_flight -= 1
        consumer.touched.pop((lane.index, offset), None)


async def _reach(queue: Queue, lane: QueueLane, offset: int) -> Outcome | None:
    """Let the cursor pass a message, as handing it out would; why not, if it cannot."""
    ledger, rules = lane.ledger, lane.rules
    if offset < ledger.cursor:
        return None
    if offset >= lane.partition.last_stable:
        return NOT_THERE
    if offset - ledger.cursor >= REACH_MAX:
        return Outcome(
            False,
            f"{offset - ledger.cursor} messages of its partition come before it, more than {REACH_MAX}: deliver or "
            "empty those first",
        )
    wanted: dict[int, bytes | None] = {}
    is_behind = False
    walk = Walk(queue, lane, ledger.cursor)
    async with queue.looks, aclosing(walk.records()) as records:
        async for each, _, key, _, _ in records:
            is_behind = each > offset
            if is_behind:
                break
            wanted[each] = key
    if offset not in wanted:
        if not is_behind and walk.offset <= offset < lane.partition.last_stable:
            return Outcome(False, "too much lies before it in its partition: deliver or empty that first")
        return NOT_THERE
    if lane.ledger is not ledger or lane.rules is not rules or not lane.open:
        return Outcome(False, "the queue was changed meanwhile. Try again.")
    for each in range(ledger.cursor, offset + 1):
        _pass(lane, each, wanted)
    return None


def _pass(lane: QueueLane, offset: int, wanted: dict[int, bytes | None]) -> None:
    """Move the cursor by one, as `claim` does: what the queue does not want is done, and what must wait is blocked."""
    ledger, keys = lane.ledger, lane.keys
    if offset not in wanted:
        ledger.skip(offset)
        return
    key = wanted[offset]
    if keys is not None and key is not None:
        if key in keys.parked:
            ledger.condemn(offset)
            return
        if not keys.hold(key, offset):
            ledger.block(offset)
            return
    ledger.reach(offset + 1)
