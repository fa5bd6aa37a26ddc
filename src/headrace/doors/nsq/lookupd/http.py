"""nsqlookupd's HTTP API: who has a topic, what is known, and its administration."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.doors.http.server.messages import HttpError, Request
from headrace.doors.http.server.routing import Routes
from headrace.doors.nsq.lookupd.registry import Registry, RegistryFull
from headrace.doors.nsq.presence import NSQ_VERSION
from headrace.doors.nsq.routes import required, topic_and_channel, topic_name


class LookupApi:
    """The handlers over a registry."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
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
            "channels": self._registry.channels(topic),
            "producers": [node.describe() for node in self._registry.producers(topic)],
        }

    async def topics(self, request: Request, parameters: Mapping[str, str]) -> object:
        return {"topics": self._registry.topics()}

    async def channels(self, request: Request, parameters: Mapping[str, str]) -> object:
        return {"channels": self._registry.channels(required(parameters, "topic"))}

    async def nodes(self, request: Request, parameters: Mapping[str, str]) -> object:
        return {
            "producers": [
                {
                    **node.describe(),
                    "tombstones": [tombstoned for _, tombstoned in topics],
                    "topics": [topic for topic, _ in topics],
                }
                for node, topics in self._registry.nodes()
            ]
        }

    async def debug(self, request: Request, parameters: Mapping[str, str]) -> object:
        return self._registry.everything()

    async def create_topic(self, request: Request, parameters: Mapping[str, str]) -> None:
        self._create(topic_name(parameters))

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

    def _create(self, topic: str, channel: str = "") -> None:
        try:
            self._registry.create(topic, channel)
        except RegistryFull as full:
            raise HttpError(503, "REGISTRY_FULL", str(full)) from None
