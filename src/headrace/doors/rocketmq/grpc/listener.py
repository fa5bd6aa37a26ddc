"""The listening address of the gRPC protocol: a server of grpcio's on the broker's own loop.

grpcio owns the connections. It polls in a thread of its own and wakes the loop through a socket, so everything that
touches the broker runs on the loop, as at any other door. Its bounds are options of the server.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence
from pathlib import Path

import grpc
from grpc import aio

from headrace.addresses import format_address
from headrace.doors.door import DoorContext
from headrace.doors.listeners import close_all
from headrace.doors.rocketmq.grpc.access import Access
from headrace.doors.rocketmq.grpc.clients import Clients
from headrace.doors.rocketmq.grpc.handlers import Handlers
from headrace.doors.rocketmq.grpc.methods import methods_of
from headrace.doors.rocketmq.messages import Host
from headrace.doors.rocketmq.producers import ProducerGroups
from headrace.doors.rocketmq.settings import RocketMqSettings
from headrace.doors.rocketmq.topics import RocketMqTopics

SERVICE = "apache.rocketmq.v2.MessagingService"
NAME = "rocketmq-grpc"
STOP_SECONDS = 5.0
# Of the names and values that come before a request.
METADATA_BYTES_MAX = 16_384


class GrpcListener:
    """Serves RocketMQ's gRPC clients."""

    def __init__(
        self, context: DoorContext[RocketMqSettings], topics: RocketMqTopics, producers: ProducerGroups
    ) -> None:
        self._context = context
        self._broker = context.broker
        self._settings = context.settings
        self.address: tuple[str, int] = ("", 0)
        """Where it listens, or did."""
        self._server: aio.Server | None = None
        # The certificates were read again since gRPC asked for them.
        self._is_renewed = False
        self._clients = Clients(context.broker, context.settings, producers, context.shared.connections_max)
        is_required = context.settings.rocketmq_authentication == "required"
        self._access = Access(context.broker, is_required=is_required)
        self._handlers = Handlers(context, topics, self._clients, lambda: Host.of(*self.address), self._access)

    async def listen(self, host: str, port: int, sockets: Sequence[socket.socket] = ()) -> None:
        """Listen; over TLS alone where a certificate is configured. Raises OSError where that cannot be."""
        if self._context.listeners is not None:
            # gRPC takes no socket from others.
            close_all(sockets)
            port = self._context.listeners.free(NAME)
        shared = self._context.shared
        server = self._server = aio.server(
            options=(
                # Two brokers on one address would each get a part of the clients.
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", self._settings.rocketmq_frame_max_bytes),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_metadata_size", METADATA_BYTES_MAX),
                ("grpc.absolute_max_metadata_size", METADATA_BYTES_MAX),
                ("grpc.max_connection_idle_ms", min(shared.connections_idle_ms, (1 << 31) - 1)),
                ("grpc.max_allowed_incoming_connections", shared.connections_max),
                # Clients ping more often than gRPC's own rule allows.
                ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
                ("grpc.keepalive_permit_without_calls", 1),
            ),
            maximum_concurrent_rpcs=self._settings.rocketmq_grpc_calls_max,
        )
        methods = methods_of(self._handlers, self._access, self._broker.metrics, NAME)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
        where = format_address(host, port)
        try:
            credentials = await self._credentials()
            if credentials is None:
                bound = server.add_insecure_port(where)
            else:
                bound = server.add_secure_port(where, credentials)
        except RuntimeError as error:
            raise OSError(errno.EADDRINUSE, str(error)) from None
        await server.start()
        self.address = (host, bound)
        self._context.on_certificates.append(self._renew)
        self._clients.start()

    async def stop(self) -> None:
        """Accept no more, answer what is under way, close."""
        server, self._server = self._server, None
        if server is not None:
            if self._renew in self._context.on_certificates:
                # Where the address was in use it did not come to that.
                self._context.on_certificates.remove(self._renew)
            self._clients.stop()
            self._handlers.stop()
            await server.stop(STOP_SECONDS)

    def _renew(self) -> None:
        self._is_renewed = True

    async def _credentials(self) -> grpc.ServerCredentials | None:
        """The TLS of all doors, from the same files."""
        shared = self._context.shared
        if not shared.tls_cert:
            return None

        def read() -> tuple[bytes, bytes, bytes | None]:
            authority = Path(shared.tls_client_ca).read_bytes() if shared.tls_client_ca else None
            return Path(shared.tls_key or shared.tls_cert).read_bytes(), Path(shared.tls_cert).read_bytes(), authority

        def configure() -> grpc.ServerCertificateConfiguration:
            key, chain, authority = read()
            return grpc.ssl_server_certificate_configuration([(key, chain)], root_certificates=authority)

        def fetch() -> grpc.ServerCertificateConfiguration | None:
            """Those for the next handshake, which gRPC asks for on a thread of its own; None: those before."""
            if not self._is_renewed:
                return None
            self._is_renewed = False
            return configure()

        first = await self._broker.runtime.offload.run(configure)
        asks_clients = bool(shared.tls_client_ca)
        return grpc.dynamic_ssl_server_credentials(first, fetch, require_client_authentication=asks_clients)
