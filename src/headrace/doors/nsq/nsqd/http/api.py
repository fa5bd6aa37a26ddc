"""nsqd's HTTP API: publishing, administration of topics and channels, figures, and what can be set while it runs.

One table of routes; the handlers that do more than pass a request on to the broker have files of their own
(`publish.py`, `stats.py`, `debug.py`). The same table is served in the clear and, with a certificate,
over TLS at a port of its own, as nsqd does.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from functools import partial

from headrace.addresses import parse_addresses
from headrace.broker.queues import Queue
from headrace.doors.door import DoorContext
from headrace.doors.http.server.authentication import HttpAuthentication
from headrace.doors.http.server.listener import Listener
from headrace.doors.http.server.messages import HttpError, Request, Response
from headrace.doors.http.server.routing import Routes
from headrace.doors.nsq.names import log_name, nsq_name
from headrace.doors.nsq.nsqd.http.debug import debug
from headrace.doors.nsq.nsqd.http.publish import PublishHandlers
from headrace.doors.nsq.nsqd.http.stats import Stats
from headrace.doors.nsq.nsqd.listener import Nsqd
from headrace.doors.nsq.nsqd.registration import Registrations
from headrace.doors.nsq.nsqd.rights import ROUTES
from headrace.doors.nsq.nsqd.topics import NsqTopics
from headrace.doors.nsq.presence import NSQ_VERSION, Presence
from headrace.doors.nsq.routes import Api, required, topic_and_channel, topic_name, write_json
from headrace.doors.nsq.settings import NsqSettings
from headrace.errors import ConfigError, TopicExists, UnknownTopic
from headrace.log.interface import Topic
from headrace.logs import LEVELS, level, set_level

NANOSECONDS = 1_000_000


class NsqdHttp:
    """nsqd's HTTP API in front of a broker."""

    def __init__(
        self,
        context: DoorContext[NsqSettings],
        presence: Presence,
        topics: NsqTopics,
        registrations: Registrations,
        door: Nsqd | None,
    ) -> None:
        broker, settings = context.broker, context.settings
        self._broker = broker
        self._settings = settings
        self._presence = presence
        self._topics = topics
        self._registrations = registrations
        self._stats = Stats(broker, presence, door, context.shared.http_answer_max_bytes)
        publishing = PublishHandlers(broker, settings, topics)
        routes: Routes = {
            "/ping": {"GET": self._ping},
            "/info": {"GET": self._info},
            "/stats": {"GET": self._stats.stats},
            "/pub": {"POST": publishing.pub},
            "/mpub": {"POST": publishing.mpub},
            "/topic/create": {"POST": self._create_topic},
            "/topic/delete": {"POST": self._delete_topic},
            "/topic/empty": {"POST": self._empty_topic},
            "/topic/pause": {"POST": self._pause_topic},
            "/topic/unpause": {"POST": self._pause_topic},
            "/channel/create": {"POST": self._create_channel},
            "/channel/delete": {"POST": self._delete_channel},
            "/channel/empty": {"POST": self._empty_channel},
            "/channel/pause": {"POST": self._pause_channel},
            "/channel/unpause": {"POST": self._pause_channel},
            "/config/{option}": {"GET": self._get_option, "PUT": self._put_option},
            "/debug/pprof/{page}": {"GET": partial(debug, context.command_line)},
        }
        self._api = Api("nsq_http", routes, broker, ROUTES)
        self.http = self._listener(context, "nsq_http")
        self.https = self._listener(context, "nsq_https")
        self._tls_required = settings.nsq_tls_required or bool(context.shared.tls_client_ca)

    def _listener(self, context: DoorContext[NsqSettings], name: str) -> Listener:
        return Listener(
            self._api.answer if name == "nsq_https" else self._answer_in_the_clear,
            self._broker.metrics.door(name),
            connections_max=context.shared.connections_max,
            capacity=context.capacity,
            answer_max_bytes=context.shared.http_answer_max_bytes,
            request_seconds=context.shared.http_request_ms / 1000,
            hosts=context.host_names,
            body_max_bytes=self._settings.nsq_max_body_size,
            write_error=Api.write_error,
            authentication=HttpAuthentication.of(self._broker.security, context.shared),
        )

    async def _answer_in_the_clear(self, request: Request) -> Response:
        if self._tls_required:
            port = self.https.address[1] if self.https.is_open else 0
            return write_json({"message": "TLS_REQUIRED", "https_port": port}, 403)
        return await self._api.answer(request)

    # --- the broker itself --------------------------------------------------------------------------------------------

    async def _ping(self, request: Request, parameters: Mapping[str, str]) -> object:
        health = self._stats.health
        return health if health == "OK" else Response(health.encode(), status=500)

    async def _info(self, request: Request, parameters: Mapping[str, str]) -> object:
        settings, presence = self._settings, self._presence
        return {
            "version": NSQ_VERSION,
            "broadcast_address": presence.broadcast_address,
            "hostname": presence.hostname,
            "http_port": presence.http_port,
            "tcp_port": presence.tcp_port,
            "start_time": presence.start_ms // 1000,
            "max_heartbeat_interval": settings.nsq_max_heartbeat_interval_ms * NANOSECONDS,
            "max_output_buffer_size": settings.nsq_max_output_buffer_size,
            "max_output_buffer_timeout": settings.nsq_max_output_buffer_timeout_ms * NANOSECONDS,
            "max_deflate_level": settings.nsq_max_deflate_level,
        }

    # --- topics -------------------------------------------------------------------------------------------------------

    async def _create_topic(self, request: Request, parameters: Mapping[str, str]) -> None:
        name = topic_name(parameters, "INVALID_TOPIC")
        self._broker.security.check_create(request.session, log_name(name))
        self._broker.quotas.take_mutate(request.session, 1)
        try:
            await self._topics.ensure(name, request.session)
        except UnknownTopic:
            # Topics are not made by naming them here (auto_create_topics), but this is more than naming one.
            with contextlib.suppress(TopicExists):
                await self._broker.topics.create(
                    log_name(name), config=self._topics.settings(name), session=request.session
                )

    async def _delete_topic(self, request: Request, parameters: Mapping[str, str]) -> None:
        topic = self._existing(required(parameters, "topic"))
        self._broker.quotas.take_mutate(request.session, len(topic.partitions))
        await self._broker.topics.delete(topic.name, only=topic, session=request.session)

    async def _empty_topic(self, request: Request, parameters: Mapping[str, str]) -> None:
        topic = self._existing(topic_name(parameters, "INVALID_TOPIC"))
        # What its channels have been given is theirs.
        if not self._broker.queues.of(topic.name):
            for partition in topic.partitions:
                await partition.load()
                await partition.trim(-1)
            self._broker.audit.record_topic(request.session, "trim", topic.name, "all partitions")

    async def _pause_topic(self, request: Request, parameters: Mapping[str, str]) -> object:
        topic = self._existing(required(parameters, "topic"))
        await self._broker.queues.pause_topic(topic.name, request.path == "/topic/pause", request.session)
        return None

    def _existing(self, name: str) -> Topic:
        found = self._topics.get(name)
        if found is None or nsq_name(found.name) != name:
            raise HttpError(404, "TOPIC_NOT_FOUND")
        return found

    # --- channels -----------------------------------------------------------------------------------------------------

    async def _create_channel(self, request: Request, parameters: Mapping[str, str]) -> None:
        name, channel = topic_and_channel(parameters)
        await self._broker.queues.ensure(self._existing(name), channel, session=request.session)

    async def _delete_channel(self, request: Request, parameters: Mapping[str, str]) -> None:
        queue = self._channel(parameters)
        await self._broker.queues.delete(queue.topic.name, queue.name, request.session)

    async def _empty_channel(self, request: Request, parameters: Mapping[str, str]) -> None:
        await self._broker.queues.empty(self._channel(parameters), request.session)

    async def _pause_channel(self, request: Request, parameters: Mapping[str, str]) -> object:
        await self._broker.queues.pause(self._channel(parameters), request.path == "/channel/pause", request.session)
        return None

    def _channel(self, parameters: Mapping[str, str]) -> Queue:
        name, channel = topic_and_channel(parameters)
        queue = self._broker.queues.get(self._existing(name).name, channel)
        if queue is None:
            raise HttpError(404, "CHANNEL_NOT_FOUND")
        return queue

    # --- what can be set ----------------------------------------------------------------------------------------------

    async def _get_option(self, request: Request, parameters: Mapping[str, str]) -> object:
        options = self._options()
        if parameters["option"] not in options:
            raise HttpError(400, "INVALID_OPTION")
        return options[parameters["option"]]

    async def _put_option(self, request: Request, parameters: Mapping[str, str]) -> object:
        if not request.body or len(request.body) > self._settings.nsq_max_msg_size:
            raise HttpError(413, "INVALID_VALUE")
        name = parameters["option"]
        try:
            if name == "nsqlookupd_tcp_addresses":
                if not self._settings.lookupd_tcp_settable:
                    raise HttpError(403, "FORBIDDEN", "set lookupd_tcp_settable to change look-up services here")
                addresses = json.loads(request.body)
                if not isinstance(addresses, list):
                    raise ValueError("not a list")
                await self._registrations.use(parse_addresses(",".join(addresses)))
            elif name == "log_level":
                wanted = request.body.decode().strip().lower()
                set_level("warning" if wanted == "warn" else wanted)
            else:
                raise HttpError(400, "INVALID_OPTION")
        except (ValueError, TypeError, RecursionError, ConfigError):
            raise HttpError(400, "INVALID_VALUE") from None
        return await self._get_option(request, parameters)

    def _options(self) -> dict[str, object]:
        """What can be asked for, by nsqd's names."""
        settings, presence = self._settings, self._presence
        return {
            "nsqlookupd_tcp_addresses": self._registrations.addresses,
            # nsqd counts its levels from 1 (debug).
            "log_level": LEVELS.index(level()) + 1,
            "broadcast_address": presence.broadcast_address,
            "broadcast_tcp_port": presence.tcp_port,
            "broadcast_http_port": presence.http_port,
            "tcp_address": settings.nsq,
            "http_address": settings.nsq_http,
            "https_address": settings.nsq_https,
            "data_path": self._broker.config.data,
            "max_msg_size": settings.nsq_max_msg_size,
            "max_body_size": settings.nsq_max_body_size,
            "max_req_timeout": settings.nsq_max_req_timeout_ms * NANOSECONDS,
            "max_msg_timeout": settings.nsq_max_msg_timeout_ms * NANOSECONDS,
            "max_rdy_count": settings.nsq_max_rdy_count,
            "max_heartbeat_interval": settings.nsq_max_heartbeat_interval_ms * NANOSECONDS,
            "max_output_buffer_size": settings.nsq_max_output_buffer_size,
            "max_output_buffer_timeout": settings.nsq_max_output_buffer_timeout_ms * NANOSECONDS,
            "max_channel_consumers": settings.nsq_max_channel_consumers,
        }
