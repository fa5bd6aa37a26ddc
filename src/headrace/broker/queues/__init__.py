"""Queues: each message to one consumer, until it is settled.

`Queues` is the broker's part; a door finds or makes a `Queue` there, subscribes a `Sink`, and settles what it delivered
through the `Consumer` that it got, or receives leases, which belong to no connection, through `Queue.leases`.
"""

from headrace.broker.queues.consumer import Consumer, Sink
from headrace.broker.queues.leases import Handle, Lease, Wanted
from headrace.broker.queues.peek import Message, Peeked
from headrace.broker.queues.queue import Figures, Queue
from headrace.broker.queues.queues import Queues
from headrace.broker.queues.settings import QueueSettings, check_name, check_settings

__all__ = [
    "Consumer",
    "Figures",
    "Handle",
    "Lease",
    "Message",
    "Peeked",
    "Queue",
    "QueueSettings",
    "Queues",
    "Sink",
    "Wanted",
    "check_name",
    "check_settings",
]
