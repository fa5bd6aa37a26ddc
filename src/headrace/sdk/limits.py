"""How large the messages may be that a topic takes, over Kafka's wire.

A topic's limit (`max.message.bytes`) is one of batches. So it is read once, and no batch exceeds it; a message that is
too large by itself is refused before it is sent, because the messages beside it are not to blame. The limit may change
at any time: it is read again before a message is refused, and after a broker has refused what should have fitted.
"""

from __future__ import annotations

from headrace.client import Admin, ClientError
from headrace.format.records import build
from headrace.sdk.message import Outgoing
from headrace.sdk.transport import TooLarge

SETTING = "max.message.bytes"
LARGEST = (1 << 31) - 1
"""The largest limit that a topic can have."""
UNKNOWN = LARGEST + 1
"""For topics that may not be asked."""

# What a message takes beside its value, its key and its headers, and each header beside its name and value; no less.
OVERHEAD_BYTES = 96
HEADER_BYTES = 10


class Limits:
    """Those of one cluster."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._known: dict[str, int] = {}

    def has(self, topic: str) -> bool:
        """Whether a topic's limit was read."""
        return topic in self._known

    def known(self, topic: str) -> int:
        """The limit that was read last."""
        return self._known.get(topic, UNKNOWN)

    async def of(self, topic: str) -> int:
        """The bytes of the largest batch that a topic takes, which is there."""
        found = self._known.get(topic)
        return await self.renew(topic) if found is None else found

    async def renew(self, topic: str) -> int:
        """The same, read now."""
        try:
            found = {each.name: each.value or "" for each in await self._admin.topic_config(topic)}
        except ClientError as error:
            if error.retriable:
                # Another time.
                return self.known(topic)
            found = {}
        value = found.get(SETTING, "")
        limit = self._known[topic] = int(value) if value.isdecimal() else UNKNOWN
        return limit

    async def extend(self, topic: str, limit: int) -> None:
        """Let a topic take more. Brokers learn of it one after the other, and may report the old limit for a moment."""
        await self._admin.alter_topic_config(topic, {SETTING: str(limit)})
        self._known[topic] = limit

    def forget(self, topic: str) -> None:
        """Read it again when it is needed."""
        self._known.pop(topic, None)

    async def check(self, message: Outgoing) -> None:
        """Raises TooLarge."""
        topic = message.topic
        if _at_most(message) <= await self.of(topic):
            return
        size = len(build([(0, message.key, message.value, list(message.headers.items()))]))
        if size > self.known(topic) and size > (limit := await self.renew(topic)):
            raise TooLarge(
                f"{topic} takes messages of up to {limit} bytes (max.message.bytes), and this one needs {size}",
                message,
                size,
            )


def _at_most(message: Outgoing) -> int:
    """Bytes that are enough for a batch of this message alone."""
    size = OVERHEAD_BYTES + len(message.value) + len(message.key or b"")
    # A character is four bytes at most.
    return size + sum([HEADER_BYTES + 4 * len(name) + len(value) for name, value in message.headers.items()])
