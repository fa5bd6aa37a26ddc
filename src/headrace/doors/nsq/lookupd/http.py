"""nsqlookupd's HTTP API: who has a topic, what is known, and its administration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headrace.broker.security import Resource, Security
from headrace.broker.security.rights import queue_name
from headrace.doors.http.server.messages import HttpError, Request
from headrace.doors.http.server.routing import Routes
from headrace.doors.nsq.lookupd.registry import Registry, RegistryFull
from headrace.doors.nsq.names import log_name
from headrace.doors.nsq.presence import NSQ_VERSION
from headrace.doors.nsq.routes import required, topic_and_channel, topic_name


class LookupApi:
    """The handlers over a registry."""

    def __init__(self, registry: Registry, security: Security) -> None:
        self._registry = registry
        self._security = security
        self.routes: Routes = {
            "/ping": {"GET": self.ping},
            "/info": {"GET": self.info},
            "/lookup": {"GET": self.lookup},
            "/topics": {"GET": self.topics},
            "/channels": {"GET": self.channels},
            "/nodes": {"GET": self.nodes},
            "/debug": {"GET": self.debug},
            "/topic/create": {"POST": self.create_topic},
            "/topic/delete": {"POST": self.delete_topic},
            "/topic/tombstone": {"POST": self.tombstone},
            "/channel/create": {"POST": self.create_channel},
            "/channel/delete": {"POST": self.delete_channel},
        }

    async def ping(self, request: Request, parameters: Mapping[str, str]) -> object:
        return "OK"

    async def info(self, request: Request, parameters: Mapping[str, str]) -> object:
        return {"version": NSQ_VERSION}

    async def lookup(self, request: Request, parameters: Mapping[str, str]) -> object:
        topic = required(parameters, "topic")
        if not self._registry.knows(topic):
            raise HttpError(404, "TOPIC_NOT_FOUND")
        return {
            "channels": self._channels(request, topic),
            "producers": [node.describe() for node in self._registry.producers(topic)],
        }

    async def topics(self, request: Request, parameters: Mapping[str, str]) -> object:
        return {"topics": self._visible(request, self._registry.topics())}

    async def channels(self, request: Request, parameters: Mapping[str, str]) -> object:
        return {"channels": self._channels(request, required(parameters, "topic"))}

    async def nodes(self, request: Request, parameters: Mapping[str, str]) -> object:
        nodes = self._registry.nodes()
        visible = set(self._visible(request, {topic for _, topics in nodes for topic, _ in topics}))
        return {
            "producers": [
                {
                    **node.describe(),
                    "tombstones": [tombstoned for topic, tombstoned in topics if topic in visible],
                    "topics": [topic for topic, _ in topics if topic in visible],
                }
                for node, topics in nodes
            ]
        }

    async def debug(self, request: Request, parameters: Mapping[str, str]) -> object:
        return self._registry.everything()

    async def create_topic(self, request: Request, parameters: Mapping[str, str]) -> None:
        topic = topic_name(parameters)
        self._security.check_create(request.session, log_name(topic))
        self._create(topic)

    async def create_channel(self, request: Request, parameters: Mapping[str, str]) -> None:
        self._create(*topic_and_channel(parameters))

    async def delete_topic(self, request: Request, parameters: Mapping[str, str]) -> None:
        self._registry.forget_topic(required(parameters, "topic"))

    async def delete_channel(self, request: Request, parameters: Mapping[str, str]) -> None:
        topic, channel = topic_and_channel(parameters)
        known = channel in self._registry.channels(topic)
        if not self._registry.forget_channel(topic, channel) and not known:
            raise HttpError(404, "CHANNEL_NOT_FOUND")

    async def tombstone(self, request: Request, parameters: Mapping[str, str]) -> None:
        self._registry.tombstone(required(parameters, "topic"), required(parameters, "node"))

    def _visible(self, request: Request, topics: Iterable[str]) -> list[str]:
        """Those that the client may describe."""
        by_name = {log_name(each): each for each in topics}
        return [by_name[name] for name in self._security.visible(request.session, Resource.TOPIC, by_name)]

    def _channels(self, request: Request, topic: str) -> list[str]:
        """Those of a topic that the client may describe."""
        by_name = {queue_name(log_name(topic), each): each for each in self._registry.channels(topic)}
        return [by_name[name] for name in self._security.visible(request.session, Resource.QUEUE, by_name)]

    def _create(self, topic: str, channel: str = "") -> None:
        try:
            self._registry.create(topic, channel)
        except RegistryFull as full:
            raise HttpError(503, "REGISTRY_FULL", str(full)) from None
