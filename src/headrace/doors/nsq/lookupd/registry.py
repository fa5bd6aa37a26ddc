"""Who produces what: the producers that registered, their topics and channels, and this broker's own.

Remote producers are what they said and last as long as their connection; they count as active while they are heard of.
A topic or channel outlives its producers here, as in nsqlookupd, so that a new producer of the topic can make the
channels before its first message. This broker is a producer too, but nothing of it is stored: what it has is looked up
when somebody asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from headrace.config import format_address
from headrace.doors.nsq.names import is_ephemeral
from headrace.errors import HeadraceError


class RegistryFull(HeadraceError):
    """There are as many registrations as may be."""


@dataclass(frozen=True, slots=True)
class Node:
    """How a producer is reached, by its own account."""

    remote_address: str
    hostname: str
    broadcast_address: str
    tcp_port: int
    http_port: int
    version: str

    def is_same(self, other: Node | None) -> bool:
        """Whether both are one: a broker may have been told to register with itself."""
        if other is None:
            return False
        return (self.broadcast_address, self.tcp_port) == (other.broadcast_address, other.tcp_port)

    def described(self) -> dict[str, object]:
        """As nsqlookupd writes it."""
        return {
            "remote_address": self.remote_address,
            "hostname": self.hostname,
            "broadcast_address": self.broadcast_address,
            "tcp_port": self.tcp_port,
            "http_port": self.http_port,
            "version": self.version,
        }


class Producer:
    """One producer that registered."""

    __slots__ = ("channels", "node", "tombstones", "topics", "updated_ms")

    def __init__(self, node: Node, now_ms: int) -> None:
        self.node = node
        self.updated_ms = now_ms
        # Dicts for their order.
        self.topics: dict[str, None] = {}
        self.channels: dict[tuple[str, str], None] = {}
        self.tombstones: dict[str, int] = {}
        """When each topic was told to be going from this producer."""


@dataclass(frozen=True, slots=True)
class Own:
    """This broker's side: what it has is asked for each time, and nothing is told while `node` gives None."""

    node: Callable[[], Node | None]
    topics: Callable[[], Iterable[str]]
    has: Callable[[str], bool]
    channels: Callable[[str], Iterable[str]]


class Registry:
    """What the look-up door knows."""

    def __init__(
        self, own: Own, now_ms: Callable[[], int], *, inactive_ms: int, tombstone_ms: int, registrations_max: int
    ) -> None:
        self._own = own
        self._now_ms = now_ms
        self._inactive_ms = inactive_ms
        self._tombstone_ms = tombstone_ms
        self._registrations_max = registrations_max
        # Each topic with its channels, and each of them with the producers that have it.
        self._topics: dict[str, dict[Producer, None]] = {}
        self._channels: dict[str, dict[str, dict[Producer, None]]] = {}
        self._producers: dict[Producer, None] = {}
        self._registrations = 0
        self._own_tombstones: dict[str, int] = {}

    # --- what producers say -------------------------------------------------------------------------------------------

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
        if topic not in producer.topics:
            self._count(1)
            producer.topics[topic] = None
            self._topics[topic][producer] = None
        if channel and (topic, channel) not in producer.channels:
            self._count(1)
            producer.channels[topic, channel] = None
            self._channels[topic][channel][producer] = None

    def unregister(self, producer: Producer, topic: str, channel: str) -> None:
        """A producer has a channel no more; or, where that is empty, the whole topic."""
        if channel:
            self._drop_channel(producer, topic, channel)
            return
        for other_topic, name in list(producer.channels):
            if other_topic == topic:
                self._drop_channel(producer, topic, name)
        if topic in producer.topics:
            del producer.topics[topic]
            producer.tombstones.pop(topic, None)
            self._registrations -= 1
            holders = self._topics.get(topic)
            if holders is not None:
                holders.pop(producer, None)
                if not holders and is_ephemeral(topic):
                    self.forget_topic(topic)

    def leave(self, producer: Producer) -> None:
        """A producer is gone with all that it had."""
        for topic in list(producer.topics):
            self.unregister(producer, topic, "")
        self._producers.pop(producer, None)

    def _drop_channel(self, producer: Producer, topic: str, channel: str) -> None:
        if (topic, channel) not in producer.channels:
            return
        del producer.channels[topic, channel]
        self._registrations -= 1
        holders = self._channels.get(topic, {}).get(channel)
        if holders is not None:
            holders.pop(producer, None)
            if not holders and is_ephemeral(channel):
                self.forget_channel(topic, channel)

    # --- what administrators say --------------------------------------------------------------------------------------

    def create(self, topic: str, channel: str = "") -> None:
        """Know a topic, and, unless that is empty, a channel of it. Raises RegistryFull."""
        if topic not in self._topics:
            self._count(1)
            self._topics[topic] = {}
        if channel and channel not in self._channels.get(topic, {}):
            self._count(1)
            self._channels.setdefault(topic, {})[channel] = {}

    def forget_topic(self, topic: str) -> None:
        """Forget a topic and its channels, whoever has them; a producer that still does may register again."""
        for channel in list(self._channels.get(topic, {})):
            self.forget_channel(topic, channel)
        holders = self._topics.pop(topic, None)
        if holders is not None:
            self._registrations -= 1 + len(holders)
            for producer in holders:
                del producer.topics[topic]
                producer.tombstones.pop(topic, None)

    def forget_channel(self, topic: str, channel: str) -> bool:
        """Forget a channel; False where it was not known."""
        channels = self._channels.get(topic, {})
        if channel not in channels:
            return False
        holders = channels.pop(channel)
        if not channels:
            del self._channels[topic]
        self._registrations -= 1 + len(holders)
        for producer in holders:
            del producer.channels[topic, channel]
        return True

    def tombstone(self, topic: str, node: str) -> None:
        """Say for a while no more that the producer at `node` (its HTTP side, HOST:PORT) has the topic."""
        for producer in self._topics.get(topic, ()):
            if node in _http_side(producer.node):
                producer.tombstones[topic] = self._now_ms()
        own = self._own.node()
        if own is not None and node in _http_side(own) and self._own.has(topic):
            self._own_tombstones = {each: at for each, at in self._own_tombstones.items() if self._stands(at)}
            self._own_tombstones[topic] = self._now_ms()

    # --- what clients ask ---------------------------------------------------------------------------------------------

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
        return sorted({*self._channels.get(topic, ()), *own})

    def producers(self, topic: str) -> list[Node]:
        """The active producers of a topic, but for those that are told to be giving it up."""
        own = self._own.node()
        nodes = [
            producer.node
            for producer in self._topics.get(topic, ())
            if self._is_active(producer)
            and not self._stands(producer.tombstones.get(topic))
            and not producer.node.is_same(own)
        ]
        if own is not None and self._own.has(topic) and not self._stands(self._own_tombstones.get(topic)):
            nodes.insert(0, own)
        return nodes

    def nodes(self) -> list[tuple[Node, list[tuple[str, bool]]]]:
        """Every active producer with its topics, and whether each is told to be going."""
        listed = []
        own = self._own.node()
        if own is not None:
            topics = sorted(self._own.topics())
            listed.append((own, [(topic, self._stands(self._own_tombstones.get(topic))) for topic in topics]))
        for producer in self._producers:
            if self._is_active(producer) and not producer.node.is_same(own):
                topics = sorted(producer.topics)
                listed.append(
                    (producer.node, [(topic, self._stands(producer.tombstones.get(topic))) for topic in topics])
                )
        return listed

    def everything(self) -> dict[str, list[dict[str, object]]]:
        """All that was registered, by category, topic and channel, as nsqlookupd shows it to whoever debugs it."""
        shown: dict[str, list[dict[str, object]]] = {}
        for producer in self._producers:
            shown.setdefault("client::", []).append(self._shown(producer, None))
        for topic, holders in self._topics.items():
            for producer in holders:
                at = producer.tombstones.get(topic)
                shown.setdefault(f"topic:{topic}:", []).append(self._shown(producer, at))
        for topic, channels in self._channels.items():
            for channel, holders in channels.items():
                for producer in holders:
                    shown.setdefault(f"channel:{topic}:{channel}", []).append(self._shown(producer, None))
        return shown

    def _shown(self, producer: Producer, tombstoned_ms: int | None) -> dict[str, object]:
        described = producer.node.described()
        described["id"] = described.pop("remote_address")
        return {
            **described,
            "last_update": producer.updated_ms * 1_000_000,
            "tombstoned": tombstoned_ms is not None,
            "tombstoned_at": (tombstoned_ms or 0) * 1_000_000,
        }

    def _has_own(self, topic: str) -> bool:
        return self._own.node() is not None and self._own.has(topic)

    def _is_active(self, producer: Producer) -> bool:
        return self._now_ms() - producer.updated_ms <= self._inactive_ms

    def _stands(self, tombstoned_ms: int | None) -> bool:
        return tombstoned_ms is not None and self._now_ms() - tombstoned_ms < self._tombstone_ms

    def _count(self, more: int) -> None:
        if self._registrations + more > self._registrations_max:
            raise RegistryFull(
                f"{self._registrations} registrations are as many as may be (lookup_registrations_max): delete topics "
                "that are gone, or raise it"
            )
        self._registrations += more


def _http_side(node: Node) -> tuple[str, str]:
    """How tools write it: an IPv6 address in brackets, or not."""
    return f"{node.broadcast_address}:{node.http_port}", format_address(node.broadcast_address, node.http_port)
