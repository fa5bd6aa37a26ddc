"""The small raw-batch Kafka client that the commands, the benchmarks and the pipeline share.

`Client` is the way in: `client.admin` for topics, groups and offsets, `client.producer()`, `client.transactional()` and
`client.consumer()` for messages, `client.cluster` for metadata and raw connections. Batches go in and out without being
decoded; the kernels encode and parse records.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from headrace.client.admin import EARLIEST, LATEST, MAX_TIMESTAMP, Admin
from headrace.client.client import Client
from headrace.client.cluster import Cluster
from headrace.client.credentials import Credentials, Mechanism
from headrace.client.errors import (
    AuthenticationError,
    BrokerError,
    ClientError,
    ConnectionLost,
    ProducerFenced,
    RecordTooLarge,
    TransactionAbortable,
    TransactionError,
    TransactionUnresolved,
)

if TYPE_CHECKING:
    from headrace.client.consumer import Chunk, Consumer, Record
    from headrace.client.producer import Producer, Sendable
    from headrace.client.send_buffer import Delivered, Delivery
    from headrace.client.transactional import TransactionalProducer

__all__ = [
    "EARLIEST",
    "LATEST",
    "MAX_TIMESTAMP",
    "Admin",
    "AuthenticationError",
    "BrokerError",
    "Chunk",
    "Client",
    "ClientError",
    "Cluster",
    "ConnectionLost",
    "Consumer",
    "Credentials",
    "Delivered",
    "Delivery",
    "Mechanism",
    "Producer",
    "ProducerFenced",
    "Record",
    "RecordTooLarge",
    "Sendable",
    "TransactionAbortable",
    "TransactionError",
    "TransactionUnresolved",
    "TransactionalProducer",
]

_LAZY = {
    "Chunk": "consumer",
    "Consumer": "consumer",
    "Record": "consumer",
    "Producer": "producer",
    "Sendable": "producer",
    "Delivered": "send_buffer",
    "Delivery": "send_buffer",
    "TransactionalProducer": "transactional",
}


def __getattr__(name: str) -> object:
    # Records and their codecs take longer to import than all else: a process that plans a read of Spark needs none.
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"headrace.client.{_LAZY[name]}"), name)
