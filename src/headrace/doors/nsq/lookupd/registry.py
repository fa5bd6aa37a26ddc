"""Which producers have which topics and channels: those that registered, and this broker.

A registration is a topic and a channel of it, or the topic itself, whose channel is empty. Remote producers are what
they sent and last as long as their connection; they count as active while they send something. A topic or channel
outlives its producers here, as in nsqlookupd, so that a new producer of the topic can make the channels before its
first message.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.doors.nsq.lookupd.node import Node, OwnNode
from headrace.doors.nsq.names import is_ephemeral
from headrace.errors import HeadraceError


class RegistryFull(HeadraceError):
    """There are as many registrations as may be."""


class Producer:
    """One producer that registered."""

    __slots__ = ("node", "registered", "tombstones", "updated_ms")

    def __init__(self, node: Node, now_ms: int) -> None:
        self.node = node
        self.updated_ms = now_ms
        # A dict for its order.
        self.registered: dict[tuple[str, str], None] = {}
        self.tombstones: dict[str, int] = {}
        """When each topic was marked as going from this producer."""

    @property
    def topics(self) -> list[str]:
        return sorted(topic for topic, channel in self.registered if not channel)


class Registry:
    """What the look-up door knows."""

    def __init__(
        self, own: OwnNode, now_ms: Callable[[], int], *, inactive_ms: int, tombstone_ms: int, registrations_max: int
    ) -> None:
        self._own = own
        self._now_ms = now_ms
        self._inactive_ms = inactive_ms
        self._tombstone_ms = tombstone_ms
        self._registrations_max = registrations_max
        # Each topic with its channels, the empty one among them, and each of these with the producers that have it.
        self._topics: dict[str, dict[str, dict[Producer, None]]] = {}
        self._producers: dict[Producer, None] = {}
        self._registrations = 0
        self._own_tombstones: dict[str, int] = {}

    # --- producers ----------------------------------------------------------------------------------------------------

    def join(self, node: Node) -> Producer:
        """A producer has introduced itself."""
        producer = Producer(node, self._now_ms())
        self._producers[producer] = None
        return producer

    def heard(self, producer: Producer) -> None:
        """A producer lives."""
        producer.updated_ms = self._now_ms()

    def register(self, producer: Producer, topic: str, channel: str) -> None:
        """A producer has a topic, and, unless that is empty, a channel of it. Raises RegistryFull."""
        self.create(topic, channel)
        for each in dict.fromkeys(("", channel)):
            if (topic, each) not in producer.registered:
                self._count_one()
                producer.registered[topic, each] = None
                self._topics[topic][each][producer] = None

    def unregister(self, producer: Producer, topic: str, channel: str) -> None:
        """A producer has a channel no more; or, where that is empty, the whole topic."""
        if channel:
            self._drop(producer, topic, channel)
            return
        # Channels before the topic that they belong to.
        for _, each in sorted((each for each in producer.registered if each[0] == topic), reverse=True):
            self._drop(producer, topic, each)

    def leave(self, producer: Producer) -> None:
        """A producer is gone with all that it had."""
        for topic, channel in sorted(producer.registered, reverse=True):
            self._drop(producer, topic, channel)
        self._producers.pop(producer, None)

    def _drop(self, producer: Producer, topic: str, channel: str) -> None:
        if (topic, channel) not in producer.registered:
            return
        self._forget_of(producer, topic, channel)
        self._registrations -= 1
        holders = self._topics[topic][channel]
        del holders[producer]
        if not holders and is_ephemeral(channel or topic):
            if channel:
                self._forget(topic, channel)
            else:
                self.forget_topic(topic)

    @staticmethod
    def _forget_of(producer: Producer, topic: str, channel: str) -> None:
        del producer.registered[topic, channel]
        if not channel:
            producer.tombstones.pop(topic, None)

    # --- administration -----------------------------------------------------------------------------------------------

    def create(self, topic: str, channel: str = "") -> None:
        """Know a topic, and, unless that is empty, a channel of it. Raises RegistryFull."""
        for each in dict.fromkeys(("", channel)):
            if each not in self._topics.get(topic, ()):
                self._count_one()
                self._topics.setdefault(topic, {})[each] = {}

    def forget_topic(self, topic: str) -> None:
        """Forget a topic and its channels for all producers; one that still has them may register again."""
        for channel in list(self._topics.get(topic, ())):
            self._forget(topic, channel)
        self._topics.pop(topic, None)

    def forget_channel(self, topic: str, channel: str) -> bool:
        """Forget a channel; False where it was not known."""
        if not channel or channel not in self._topics.get(topic, ()):
            return False
        self._forget(topic, channel)
        return True

    def _forget(self, topic: str, channel: str) -> None:
        holders = self._topics[topic].pop(channel)
        self._registrations -= 1 + len(holders)
        for producer in holders:
            self._forget_of(producer, topic, channel)

    def tombstone(self, topic: str, node: str) -> None:
        """Hide the topic of the producer at `node` (its HTTP side, HOST:PORT) for a while."""
        for producer in self._holders(topic):
            if node in producer.node.http_addresses:
                producer.tombstones[topic] = self._now_ms()
        own = self._own.node()
        if own is not None and node in own.http_addresses and self._own.has(topic):
            self._own_tombstones = {each: at for each, at in self._own_tombstones.items() if self._stands(at)}
            self._own_tombstones[topic] = self._now_ms()

    # --- questions of clients -----------------------------------------------------------------------------------------

    def topics(self) -> list[str]:
        """Every topic that is known."""
        own = self._own.topics() if self._own.node() is not None else ()
        return sorted({*self._topics, *own})

    def knows(self, topic: str) -> bool:
        """Whether the topic is known."""
        return topic in self._topics or self._has_own(topic)

    def channels(self, topic: str) -> list[str]:
        """Every channel of a topic that is known."""
        own = self._own.channels(topic) if self._has_own(topic) else ()
        return sorted({*self._topics.get(topic, ()), *own} - {""})

    def producers(self, topic: str) -> list[Node]:
        """The active producers of a topic, without those that have a tombstone for it."""
        own = self._own.node()
        nodes = [
            producer.node
            for producer in self._holders(topic)
            if self._is_shown(producer, own) and not self._stands(producer.tombstones.get(topic))
        ]
        if own is not None and self._own.has(topic) and not self._stands(self._own_tombstones.get(topic)):
            nodes.insert(0, own)
        return nodes

    def nodes(self) -> list[tuple[Node, list[tuple[str, bool]]]]:
        """Every active producer with its topics, and whether each has a tombstone."""
        own = self._own.node()
        listed = [] if own is None else [(own, sorted(self._own.topics()), self._own_tombstones)]
        listed += [(each.node, each.topics, each.tombstones) for each in self._producers if self._is_shown(each, own)]
        return [
            (node, [(topic, self._stands(tombstones.get(topic))) for topic in topics])
            for node, topics, tombstones in listed
        ]

    def everything(self) -> dict[str, list[dict[str, object]]]:
        """All that was registered, by category, topic and channel, as nsqlookupd shows it for debugging."""
        shown = {"client::": [_describe(producer, None) for producer in self._producers]} if self._producers else {}
        for topic, channels in self._topics.items():
            for channel, holders in channels.items():
                name = f"channel:{topic}:{channel}" if channel else f"topic:{topic}:"
                for producer in holders:
                    at = None if channel else producer.tombstones.get(topic)
                    shown.setdefault(name, []).append(_describe(producer, at))
        return shown

    def _holders(self, topic: str) -> dict[Producer, None]:
        return self._topics.get(topic, {}).get("", {})

    def _has_own(self, topic: str) -> bool:
        return self._own.node() is not None and self._own.has(topic)

    def _is_shown(self, producer: Producer, own: Node | None) -> bool:
        return self._now_ms() - producer.updated_ms <= self._inactive_ms and not producer.node.is_same(own)

    def _stands(self, tombstoned_ms: int | None) -> bool:
        return tombstoned_ms is not None and self._now_ms() - tombstoned_ms < self._tombstone_ms

    def _count_one(self) -> None:
        if self._registrations >= self._registrations_max:
            raise RegistryFull(
                f"{self._registrations} registrations are the maximum (lookup_registrations_max): delete topics "
                "that are gone, or raise it"
            )
        self._registrations += 1


def _describe(producer: Producer, tombstoned_ms: int | None) -> dict[str, object]:
    described = producer.node.describe()
    described["id"] = described.pop("remote_address")
    return {
        **described,
        "last_update": producer.updated_ms * 1_000_000,
        "tombstoned": tombstoned_ms is not None,
        "tombstoned_at": (tombstoned_ms or 0) * 1_000_000,
    }
