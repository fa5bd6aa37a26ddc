"""Leases: a message that is being handled stays this consumer's for as long as its handler runs.

A queue delivers a message to another consumer when its visibility timeout is over. So while a handler runs, the leases
of its messages are extended: for up to `timeout_max` seconds, and for as long as the handler itself asks for
(`Message.extend`). A message that is delivered again all the same, while its handler runs here, is not handled beside
it: the new delivery waits, and gets the outcome of that handler.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Hashable, Iterable, Sequence

import structlog

from headrace.sdk.message import Message
from headrace.sdk.transport import Delivery

log = structlog.get_logger("headrace.sdk")


class Lease:
    """A message that a worker has."""

    __slots__ = ("delivery", "lost", "message", "settled", "until", "warned")

    def __init__(self, delivery: Delivery) -> None:
        self.message = delivery.message
        """As the handler has it."""
        self.delivery = delivery
        """The newest of the same message."""
        self.until = math.inf
        """Extended until then, of the loop's clock; it is bounded from when the handler begins."""
        self.lost = False
        self.settled = False
        self.warned = False


class Leases:
    """Those of one subscription. A batch runner has none while its batches are whole."""

    def __init__(self, subscription: str) -> None:
        self.loop = asyncio.get_running_loop()
        self._held: dict[Hashable, Lease] = {}
        self._log = log.bind(subscription=subscription)

    # --- a message's way through a worker -----------------------------------------------------------------------------

    def take(self, delivery: Delivery) -> bool:
        """A worker takes a message; false where it has it already, and this delivery waits for that."""
        place = delivery.identity
        lease = self._held.get(place)
        if lease is None:
            self._held[place] = Lease(delivery)
            return True
        if delivery.message.attempt >= lease.delivery.message.attempt:
            self._log.warning(
                "a message was delivered again while its handler runs; it is not handled twice",
                message=lease.message.id,
                attempt=delivery.message.attempt,
            )
            lease.delivery, lease.lost = delivery, False
        return False

    def takes(self, delivery: Delivery) -> bool:
        """Whether a delivery is of a message that a worker has; it waits for that then."""
        return delivery.identity in self._held and not self.take(delivery)

    def begin(self, deliveries: Iterable[Delivery], seconds: float) -> None:
        """A handler begins: their leases are extended for so long."""
        if not self._held:
            return
        until = self.loop.time() + seconds
        for each in deliveries:
            lease = self._held.get(each.identity)
            if lease is not None:
                lease.until = until
                lease.delivery.hold(seconds)

    def is_lost(self, delivery: Delivery) -> bool:
        """Whether a message is known to be another consumer's."""
        lease = self._held.get(delivery.identity)
        return lease is not None and lease.lost

    def settle(self, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
        """What is to be settled in their place: the newest delivery of each."""
        if not self._held:
            return deliveries
        found = []
        for each in deliveries:
            lease = self._held.get(each.identity)
            if lease is not None:
                lease.settled = True
            found.append(each if lease is None else lease.delivery)
        return found

    def end(self, deliveries: Iterable[Delivery]) -> list[Delivery]:
        """A worker has finished messages; those that were delivered anew meanwhile, and are still to be handled."""
        again: list[Delivery] = []
        if not self._held:
            return again
        for each in deliveries:
            lease = self._held.pop(each.identity, None)
            if lease is not None and lease.delivery is not each and not lease.settled:
                again.append(lease.delivery)
        return again

    # --- keeping them -------------------------------------------------------------------------------------------------

    def keep(self) -> None:
        """Let the visibility timeout of each begin anew."""
        now = self.loop.time()
        for lease in list(self._held.values()):
            delivery = lease.delivery
            if lease.lost or lease.settled or not delivery.leased:
                continue
            if lease.until <= now:
                self._warn(lease, "a handler runs for longer than timeout_max: its message may be delivered again")
            elif not delivery.touch():
                lease.lost = True
                self._warn(lease, "a message whose handler runs is not leased any more: it may be delivered again")

    def extend(self, message: Message, seconds: float) -> bool:
        """Keep a message that is being handled for so many seconds from now, or longer. False where the system does
        not allow that, or has given it to another consumer."""
        lease = next((each for each in self._held.values() if each.message is message), None)
        if lease is None:
            return True
        lease.until = max(lease.until, self.loop.time() + seconds)
        lease.warned = False
        delivery = lease.delivery
        if not delivery.leased:
            # Kafka's groups have no leases: a partition is its consumer's until it is taken away.
            return True
        return not lease.lost and delivery.hold(seconds) and delivery.touch()

    def _warn(self, lease: Lease, event: str) -> None:
        if not lease.warned:
            lease.warned = True
            self._log.warning(event, message=lease.message.id, attempt=lease.delivery.message.attempt)
