"""What the APIs that change topics share: a time limit, and lists of replicas, which are the nodes of the group."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from kio.schema.errors import ErrorCode

from headrace.broker.settings import BrokerSettings
from headrace.doors.kafka.errors import KafkaError
from headrace.errors import TooManyPartitions

T = TypeVar("T")

_NONE = timedelta()
# Seconds for a change whose request gives no time.
_WITHOUT_TIME = 1.0
# Changes whose request has been answered already; the loop itself would let go of them.
_late: set[asyncio.Future[Any]] = set()


async def within(limit: timedelta, changes: Sequence[Callable[[], Coroutine[Any, Any, T]]]) -> list[T | BaseException]:
    """Make all changes at once; what each returned or raised. A change that takes longer than `limit` is
    answered with REQUEST_TIMED_OUT and goes on: half a change would be worse than a late one. No time at all is that of
    a client that would not wait for other nodes to learn of the change."""
    seconds = limit.total_seconds() if limit > _NONE else _WITHOUT_TIME
    tasks = [asyncio.ensure_future(change()) for change in changes]
    together = asyncio.gather(*tasks, return_exceptions=True)
    _late.add(together)
    together.add_done_callback(_late.discard)
    try:
        return await asyncio.wait_for(asyncio.shield(together), seconds)
    except TimeoutError:
        late = KafkaError(ErrorCode.request_timed_out, "the change was not finished in the time that the request gave")
        return [(task.exception() or task.result()) if task.done() else late for task in tasks]


def check_asked(partitions: int, config: BrokerSettings) -> None:
    """Refuse a request that asks for so many partitions in all that making them would keep others from their turn."""
    if partitions > config.partitions_per_request_max:
        raise TooManyPartitions(
            f"the request asks for {partitions} partitions, above the maximum of {config.partitions_per_request_max} "
            "(partitions_per_request_max). Ask for them in several requests."
        )


def repeated(keys: Iterable[T]) -> set[T]:
    """The keys that occur more than once in a request."""
    return {key for key, count in Counter(keys).items() if count > 1}


def check_replicas(broker_ids: Sequence[int], nodes: Sequence[int]) -> None:
    """Refuse a replica list other than that of all nodes of the group, in whatever order."""
    if sorted(broker_ids) == sorted(nodes):
        return
    those = f"broker {nodes[0]}" if len(nodes) == 1 else f"the brokers {', '.join(map(str, nodes))}"
    if not broker_ids:
        reason = "a partition without replicas cannot be"
    elif unknown := next((each for each in broker_ids if each not in nodes), None):
        reason = f"there is no broker {unknown} to hold a replica"
    elif len(set(broker_ids)) < len(broker_ids):
        reason = "a broker occurs more than once in a list of replicas"
    else:
        reason = "every node of the group holds a replica of every partition"
    raise KafkaError(ErrorCode.invalid_replica_assignment, f"{reason}: name {those}")
