"""The small raw-batch Kafka client that the commands, the benchmarks and the pipeline share.

`Client` is the way in: `client.admin` for topics, groups and offsets, `client.producer()`, `client.transactional()` and
`client.consumer()` for messages, `client.cluster` for metadata and raw connections. Batches go in and out without being
decoded; the kernels encode and parse records.
"""

from headrace.client.admin import EARLIEST, LATEST, MAX_TIMESTAMP, Admin
from headrace.client.client import Client
from headrace.client.cluster import Cluster
from headrace.client.consumer import Chunk, Consumer, Record
from headrace.client.errors import (
    BrokerError,
    ClientError,
    ConnectionLost,
    ProducerFenced,
    RecordTooLarge,
    TransactionAbortable,
    TransactionError,
    TransactionUnresolved,
)
from headrace.client.producer import Producer, Sendable
from headrace.client.send_buffer import Delivered, Delivery
from headrace.client.transactional import TransactionalProducer

__all__ = [
    "EARLIEST",
    "LATEST",
    "MAX_TIMESTAMP",
    "Admin",
    "BrokerError",
    "Chunk",
    "Client",
    "ClientError",
    "Cluster",
    "ConnectionLost",
    "Consumer",
    "Delivered",
    "Delivery",
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
