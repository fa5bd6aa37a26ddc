"""Topics as NSQ's clients make them: by naming them.

A topic that is born here keeps its messages until every channel has settled them (`retention=consumed`), in segments
small enough to be dropped soon, and takes the largest message that NSQ allows. `#ephemeral` ones are in memory only.
"""

from __future__ import annotations

import asyncio
import contextlib

from headrace.broker.broker import Broker
from headrace.broker.security import Session
from headrace.doors.nsq.names import is_ephemeral, log_name, nsq_name
from headrace.doors.nsq.settings import NsqSettings
from headrace.errors import HeadraceError
from headrace.log.interface import Topic

SEGMENT_BYTES = 67_108_864
# What a record batch adds to one message, generously.
AROUND_BYTES = 1_024


class NsqTopics:
    """The topics that clients name, made when they are missing."""

    def __init__(self, broker: Broker, settings: NsqSettings) -> None:
        self._broker = broker
        self._settings = settings
        self._deleting: dict[asyncio.Task[None], None] = {}

    def get(self, name: str) -> Topic | None:
        """The topic of that NSQ name, if it is there."""
        return self._broker.topics.get(log_name(name))

    async def ensure(self, name: str, session: Session | None = None) -> Topic:
        """The topic of that NSQ name, made for a session if it is missing and may be. Raises UnknownTopic, InvalidTopic
        or BoundReached."""
        return await self._broker.topics.ensure(log_name(name), self.settings(name), session)

    async def ensure_to_publish(self, session: Session, name: str) -> Topic:
        """The same for a session that is about to publish to it. Raises NotAuthorized, too."""
        return await self._broker.publisher.ensure(session, log_name(name), self.settings(name))

    def delete_unused(self, topic: Topic) -> None:
        """A subscriber has left: delete an ephemeral topic with its last channel."""
        if not topic.deleted and is_ephemeral(nsq_name(topic.name) or "") and not self._broker.queues.of(topic.name):
            task = asyncio.get_running_loop().create_task(self._delete(topic))
            self._deleting[task] = None
            task.add_done_callback(self._deleting.pop)

    async def _delete(self, topic: Topic) -> None:
        # Another client may have deleted it, or made a new channel, since.
        if not self._broker.queues.of(topic.name):
            with contextlib.suppress(HeadraceError):
                await self._broker.topics.delete(topic.name, only=topic)

    def settings(self, name: str) -> dict[str, str]:
        """The topic settings that a topic is born with."""
        largest = max(self._broker.config.message_max_bytes, self._settings.nsq_max_msg_size + AROUND_BYTES)
        settings = {
            "retention": "consumed",
            "segment.bytes": str(SEGMENT_BYTES),
            "max.message.bytes": str(largest),
        }
        if is_ephemeral(name):
            settings["durability"] = "memory"
        return settings
