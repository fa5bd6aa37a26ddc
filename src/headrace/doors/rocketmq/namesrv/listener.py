"""The name server: it knows this broker, and what RocketMQ's tools have configured.

Nothing of the broker is stored: what it has is looked up for each question. Other brokers cannot register, because that
would let any client take over routes.
"""

from __future__ import annotations

from headrace.doors.door import DoorContext
from headrace.doors.rocketmq.listener import RemotingListener
from headrace.doors.rocketmq.namesrv import handlers
from headrace.doors.rocketmq.presence import Presence
from headrace.doors.rocketmq.settings import RocketMqSettings
from headrace.doors.rocketmq.topics import RocketMqTopics


class NameServer(RemotingListener):
    """Answers where topics are."""

    title = "name server"

    def __init__(self, context: DoorContext[RocketMqSettings], presence: Presence, topics: RocketMqTopics) -> None:
        super().__init__(context, "rocketmq_namesrv")
        self.handlers = handlers.of(self)
        self.presence = presence
        self.topics = topics
        self.is_writable = True
        """Whether routes let producers write to this broker: an administrator may take that away until the next start.
        """
