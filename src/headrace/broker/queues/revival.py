"""Revival: a queue of an earlier life of the broker, from what `__queues` has of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.queues import state
from headrace.broker.queues.lane import QueueLane
from headrace.broker.queues.ledger import Ledger
from headrace.broker.queues.parking import PARKING
from headrace.broker.queues.queue import Queue
from headrace.broker.queues.settings import QueueSettings
from headrace.broker.queues.state import StoredQueue
from headrace.log.interface import Durability, Topic

if TYPE_CHECKING:
    from headrace.broker.queues.queues import Queues


def revive(queues: Queues, number: int, topic: Topic, parking: Topic | None, found: StoredQueue) -> Queue:
    """The queue of that number, with its lanes; they are not open yet."""
    settings = QueueSettings().changed(found.described["settings"])
    queue = Queue(queues, number, topic, found.described["name"], settings)
    queue.paused = bool(found.described["paused"])
    queue.parked = state.parked_keys(found.described)
    for partition in topic.partitions:
        known = found.lane(partition.index)
        # Nothing of a `memory` topic outlives the process; and a lane whose topic grew just before a crash was never
        # written down.
        is_new = known is None or topic.settings.durability is Durability.MEMORY
        ledger, epoch = (Ledger(partition.start), partition.epoch) if known is None or is_new else known
        ledger.attempts_max = settings.max_attempts
        ledger.condemn_spent()
        lane = queue.lanes[partition.index] = QueueLane(queue, partition, partition.index, ledger, epoch)
        lane.unsaved = is_new
    known = found.lane(PARKING)
    if known is not None and parking is not None:
        queue.lanes[PARKING] = QueueLane(queue, parking.partitions[0], PARKING, *known)
    return queue
