"""The channels that look-up services know of a topic, made with it, whichever door the topic is made through.

nsqd asks its nsqlookupds for the channels of a topic that is new to it, and makes them before the first message, so
that no channel misses any. Here the services are asked before any client can see the topic, this broker's own look-up
like the others. What they answer is made in one go: a SUB that names one of these channels waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

import structlog

from headrace.broker.broker import Broker
from headrace.broker.topics import Complete
from headrace.doors.nsq.names import is_channel_name, is_ephemeral, nsq_name
from headrace.errors import HeadraceError
from headrace.log.interface import EARLIEST, Topic

# A topic that is known to have more channels elsewhere gets no more than these here.
CHANNELS_MAX = 1_000

Service = Callable[[str], Awaitable[Iterable[str]]]
"""From NSQ's name of a topic to the channels that a look-up service knows of it."""

log = structlog.get_logger("headrace.nsq")


class KnownChannels:
    """Makes the channels that look-up services know of each topic that is new to a broker."""

    def __init__(self, broker: Broker) -> None:
        self.services: list[Service] = []
        self._broker = broker
        broker.topics.prepare = self._prepare

    async def _prepare(self, name: str) -> Complete | None:
        topic = nsq_name(name)
        if topic is None:
            return None
        answers = await asyncio.gather(*(service(topic) for service in self.services))
        known = {channel for answer in answers for channel in answer if is_channel_name(channel)}
        # Ephemeral channels need a consumer.
        channels = sorted(channel for channel in known if not is_ephemeral(channel))[:CHANNELS_MAX]
        if not channels:
            return None

        async def complete(topic: Topic) -> None:
            # All at once: a channel that came later would otherwise find others there, and begin at the end.
            await asyncio.gather(*(self._make(topic, channel) for channel in channels))

        return complete

    async def _make(self, topic: Topic, channel: str) -> None:
        try:
            # From the beginning: another client may have published since.
            await self._broker.queues.ensure(topic, channel, EARLIEST)
        except HeadraceError as error:
            log.warning(
                "a channel that a look-up service knows cannot be made: it misses what comes before its first SUB",
                topic=topic.name,
                channel=channel,
                error=str(error),
            )
