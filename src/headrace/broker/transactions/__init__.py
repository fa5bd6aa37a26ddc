"""Kafka's transactions: who may write under a transactional id, and what of it counts.

coordinator.py           requests: begin, add, end, fence, time out, expire
transactional_append.py  the batches of a request, and the partitions that they bring in
transaction.py           the state of one transactional id, and which steps lead where
unused.py                ids that never had a transaction, bounded for each client
expiry.py                forgetting ids
store.py                 `__transaction_state`: made, replayed, appended to
transaction_codec.py     the formats of its records
"""

from headrace.broker.transactions.coordinator import Granted, TransactionCoordinator
from headrace.broker.transactions.transaction import Status, Transaction
from headrace.broker.transactions.transactional_append import Outcome, TransactionalBatch
from headrace.broker.transactions.unused import Holder

__all__ = ["Granted", "Holder", "Outcome", "Status", "Transaction", "TransactionCoordinator", "TransactionalBatch"]
