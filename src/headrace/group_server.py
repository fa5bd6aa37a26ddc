"""The composition root of a node in a group: a replica, and on it what the node's role asks for.

While the node follows, there is a standby: a broker that is not started, over a log that is written by the group, and
the doors of a follower. When it begins to lead, the follower's doors close, the broker starts, and the leader's doors
open. When it leads no more, its doors close and its broker is abandoned: what a broker has in memory was never
committed, so another one is made. A role is a whole, and nothing of it goes on in the next.

Listening sockets are bound once and outlive the doors: see `headrace.doors.listeners`.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import structlog

from headrace.addresses import format_address, parse_address
from headrace.broker.broker import Broker
from headrace.broker.metrics import Metrics
from headrace.broker.security.given_admins import read_given
from headrace.broker.settings import BrokerSettings
from headrace.client.tls import client_context
from headrace.cluster import waiting
from headrace.cluster.etcd import Etcd
from headrace.cluster.given_admin import AdminIntake
from headrace.cluster.membership import GroupMembership
from headrace.cluster.metrics import render as render_replica
from headrace.cluster.node import NodeSettings
from headrace.cluster.peer_tls import PeerTls
from headrace.cluster.peer_tls import load as load_peer_tls
from headrace.cluster.records import AdminRecord, Incarnation, Keys
from headrace.cluster.records import Node as NodeRecord
from headrace.cluster.replica import Replica, Role
from headrace.cluster.settings import ClusterSettings
from headrace.cluster.url import parse_cluster_url
from headrace.cluster.versions import pinned
from headrace.config import Config
from headrace.doors.capacity import Capacity
from headrace.doors.door import open_listener
from headrace.doors.kafka.settings import listeners_of
from headrace.doors.listeners import Listeners, close_all
from headrace.doors.registry import DOORS, DoorEntry
from headrace.errors import ConfigError, HeadraceError
from headrace.exposure import Exposed, exposed_doors, is_exposed, refuse_exposed
from headrace.log.settings import LogSettings
from headrace.open_doors import OpenDoors
from headrace.resources import Resources, directory_error
from headrace.runtime import Runtime
from headrace.targets import local_path
from headrace.version import VERSION

log = structlog.get_logger("headrace.server")

EVERY_INTERFACE = ("0.0.0.0", "::")
# A start waits as long for an etcd that has just been started.
ETCD_PATIENCE_SECONDS = 10.0
# Before a stop, where too few replicas are in sync to commit anything.
FLUSH_SECONDS = 1.0
# The doors of a new leader wait as long for the administrator that the group is given.
ADMIN_SECONDS = 1.0


class GroupServer:
    """One node of a group, on the running loop."""

    broker: Broker
    """Of the role that the node has, there once the server has started."""

    def __init__(self, config: Config, runtime: Runtime | None = None, doors: Sequence[DoorEntry] = DOORS) -> None:
        self.config = config
        self.addresses: dict[str, str] = {}
        """HOST:PORT of each listener, by its name, and of `peer`."""
        self._entries = doors
        self._runtime = runtime
        self._capacity = Capacity(unread_bytes=config.unread_max_bytes, receiving_bytes=config.receiving_max_bytes)
        # The simulator's loop has sockets of its own kind.
        self._listeners = Listeners() if runtime is None else None
        self._metrics = Metrics()
        self._accepts = False
        # Whether the broker was started, or is being: it then has to be abandoned.
        self._is_started = False
        self._leads = asyncio.Event()
        self._deposed = asyncio.Event()
        self._roles: asyncio.Task[None] | None = None
        self._intake: AdminIntake | None = None
        self._running = AsyncExitStack()

    @property
    def ready(self) -> bool:
        """Every door of the node's role accepts."""
        return self._accepts

    # --- life ---

    async def start(self) -> None:
        """Take part in the group, as a follower; raises a HeadraceError with everything stopped again."""
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> None:
        config = self.config
        exposed = [*exposed_doors(config, self._entries), *exposed_peer(config)]
        refuse_exposed(exposed, insecure=config.insecure)
        # Before a start is counted.
        tls = peer_tls_of(config)
        self._resources = resources = Resources(config, self._runtime, self._capacity)
        self._running.callback(resources.close)
        url = parse_cluster_url(config.cluster)
        keys, etcd = Keys(url.name), etcd_of(config.part(ClusterSettings))
        self._etcd = etcd
        versions = pinned(config.replica_feature_level_max)
        self._running.push_async_callback(etcd.close)
        # No start is counted of a directory that another process has. The replica takes it again in a moment.
        resources.runtime.disk.lock()
        try:
            runtime, peer = resources.runtime, _place(config.peer)
            found = await waiting.start(runtime, etcd, keys, config.group, config.node_id, versions.level, tls, peer)
        finally:
            resources.runtime.disk.unlock()
        me = Incarnation(config.node_id, found.directory_id, found.starts)
        self.replica = Replica(
            resources.runtime,
            etcd,
            NodeSettings(
                found.cluster_id,
                keys,
                config.group,
                me,
                journal_max_bytes=config.replica_journal_max_bytes,
                copy_bytes_per_second=config.replica_copy_bytes_per_second,
                tls=tls,
                versions=versions,
                feature_level=found.feature_level,
            ),
            replace(config.part(LogSettings), open_files_max=resources.segments_max),
            self._on_role,
            config.replica_uncommitted_max_bytes,
        )
        self.replica.flush_state = self._flush_state
        try:
            address = await self.replica.start(*peer)
        except OSError as error:
            raise directory_error(config.data, error) from error
        self._running.push_async_callback(self.replica.stop)
        await self._bind()
        self.addresses["peer"] = address
        record = NodeRecord(
            me.directory_id,
            me.starts,
            config.group,
            config.rack,
            advertised(config, self.addresses, resources.runtime.hostname),
            resources.runtime.boot_id,
            versions.oldest,
            versions.newest,
            versions.level,
        )
        self.membership = GroupMembership(self.replica, config.node_id, record)
        self._metrics.parts.append(partial(render_replica, self.replica))
        self._doors = OpenDoors(
            config,
            self._entries,
            self._capacity,
            resources.certificates.contexts,
            lambda: self._accepts,
            self.addresses,
            self._listeners,
        )
        self._doors.load()
        await self._follow()
        await self.replica.join(record)
        self._roles = asyncio.get_running_loop().create_task(self._serve_roles())
        log.info("ready", version=VERSION, data=config.data, node=config.node_id, group=config.group, **self.addresses)

    async def _bind(self) -> None:
        """Open the sockets of all listeners, whatever doors the node's first role has."""
        if self._listeners is None:
            return
        self._running.callback(self._listeners.close)
        for entry in self._entries:
            for name, address in entry.listeners(self.config).items():
                await open_listener(name, address, _leave, self._listeners, entry.setting_of(name))
                self.addresses[name] = format_address(*self._listeners.address(name))

    async def reload_certificates(self) -> None:
        """Read the certificates of the doors again, if there are any."""
        await self._resources.reload_certificates()

    async def stop(self) -> None:
        """Stop in order: doors, broker, replica, runtime. Safe to call twice."""
        was_ready, self._accepts = self._accepts, False
        if was_ready:
            log.info("stopping")
        await asyncio.shield(self._stop())
        if was_ready:
            log.info("stopped")
        self.addresses.clear()

    async def _stop(self) -> None:
        roles, self._roles = self._roles, None
        if roles is not None:
            await self._retire()
            roles.cancel()
            await asyncio.gather(roles, return_exceptions=True)
            self._end_intake()
            if self.membership.leads:
                await self.broker.end_waits()
                await self._doors.close()
                await self._stop_broker()
            elif self._is_started:
                await self._abandon()
            else:
                await self._doors.close()
                await self.broker.security.stop()
        running, self._running = self._running, AsyncExitStack()
        await running.aclose()

    async def _retire(self) -> None:
        """Hand over, while the doors are open: clients are answered until another node leads. Where there is none, the
        state is on this node's disk when it leads again."""
        if self.membership.leads:
            try:
                async with asyncio.timeout(FLUSH_SECONDS):
                    await self.broker.flush_state(lambda: None)
            except (HeadraceError, OSError, TimeoutError) as error:
                log.warning("the broker's state could not be flushed before the stop", error=repr(error))
        await self.replica.retire()

    async def _flush_state(self, seal: Callable[[], None]) -> None:
        if self.membership.leads:
            await self.broker.flush_state(seal)
        else:
            seal()

    async def _stop_broker(self) -> None:
        """Write down what the broker has in memory, for as long as the node leads."""
        stopping = asyncio.ensure_future(self.broker.stop())
        deposed = asyncio.ensure_future(self._deposed.wait())
        await asyncio.wait((stopping, deposed), return_when=asyncio.FIRST_COMPLETED)
        deposed.cancel()
        if not stopping.done():
            stopping.cancel()
            await asyncio.gather(stopping, return_exceptions=True)
            await self.broker.abandon()
        else:
            stopping.result()

    async def wait_failed(self) -> None:
        """Return never; raises a HeadraceError when the replica cannot go on. One that must copy the group's log anew
        is started again, and does."""
        while True:
            await self.replica.broken.wait()
            if not self.replica.copies.must_copy:
                break
            await self.stop()
            await self.start()
        raise HeadraceError(
            f"this replica cannot go on: {self.replica.problem}. Look at the disk of {self.config.data}, and start "
            "the node again: it recovers from its journal, and from the other nodes."
        )

    # --- roles ---

    def _on_role(self, role: Role) -> None:
        if role is Role.LEADER:
            self._deposed.clear()
            self._leads.set()
        else:
            # At once: requests from now on are answered as by a node that does not lead.
            self.replica.hold()
            self._accepts = False
            self._leads.clear()
            self._deposed.set()
            self._end_intake()
            self.membership.leads = False

    async def _serve_roles(self) -> None:
        while True:
            await self._leads.wait()
            leading = asyncio.get_running_loop().create_task(self._lead())
            try:
                await self._deposed.wait()
            finally:
                leading.cancel()
                await asyncio.gather(leading, return_exceptions=True)
            await self._abandon()
            await self._follow()
            self.replica.release()

    async def _follow(self) -> None:
        """Begin as a follower: a standby, and a follower's doors."""
        config, runtime = self.config, self._resources.runtime
        self.broker = Broker(runtime, self.replica.log, config.part(BrokerSettings), self.membership, self._metrics)
        await self.broker.follow()
        await self._doors.open(self.broker, follows=True)
        self._accepts = True

    async def _lead(self) -> None:
        """Begin to lead: the standby becomes the broker."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            await self._doors.close_together()
            self._is_started = True
            await self.broker.start()
            if self._deposed.is_set():
                return
            self.membership.leads = True
            await self._take_admin()
            await self._doors.open(self.broker)
        except (HeadraceError, OSError) as error:
            if not self._deposed.is_set():
                self.replica.fail(f"the broker cannot be started: {error}")
            return
        if self._deposed.is_set():
            return
        self._accepts = True
        log.info("serves as leader", epoch=self.membership.epoch, milliseconds=int((loop.time() - began) * 1000))

    async def _take_admin(self) -> None:
        """Take the administrator that etcd may have, before the first client comes. Where too few replicas are in sync
        to commit anything, the doors open all the same."""
        broker = self.broker

        async def take(record: AdminRecord) -> bool:
            given = read_given(record.id, record.user, record.credentials)
            return await broker.security.given_admins.take(given)

        metadata = self.replica.node.metadata
        self._intake = intake = AdminIntake(self._etcd, lambda: metadata.admin, take)
        intake.start()
        with suppress(TimeoutError):
            await asyncio.wait_for(intake.has_looked.wait(), ADMIN_SECONDS)

    def _end_intake(self) -> None:
        intake, self._intake = self._intake, None
        if intake is not None:
            intake.cancel()

    async def _abandon(self) -> None:
        """End a leadership: nothing that is not committed goes on."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        await self.broker.end_waits()
        await self._doors.close_together()
        closed = loop.time()
        await self.broker.abandon()
        self._is_started = False
        self.membership.on_change.clear()
        doors_ms, broker_ms = int((closed - began) * 1000), int((loop.time() - closed) * 1000)
        log.info("has let go of its leadership", doors_milliseconds=doors_ms, broker_milliseconds=broker_ms)


def exposed_peer(config: Config) -> list[Exposed]:
    """The listener for other nodes, where other machines reach it and nothing guards it: it gives away every message,
    and takes whatever a leader sends."""
    if config.peer_tls_ca or not is_exposed(config.peer):
        return []
    return [Exposed("peer", config.peer, "Give the nodes certificates: see peer_tls_ca.")]


def peer_tls_of(config: Config) -> PeerTls | None:
    """The certificates for connections between nodes, or None where they speak in the clear. The authority of doors
    (`tls_client_ca`) is not taken instead: it signs for clients. Raises ConfigError."""
    if not config.peer_tls_ca:
        return None
    own = (config.peer_tls_cert, config.peer_tls_key) if config.peer_tls_cert else (config.tls_cert, config.tls_key)
    cert, key, ca = (local_path(each, "peer_tls files") for each in (*own, config.peer_tls_ca))
    return load_peer_tls(cert, key, ca)


def etcd_of(settings: ClusterSettings) -> Etcd:
    """A client of the etcd that the settings name. Raises ConfigError."""
    url = parse_cluster_url(settings.cluster)
    tls: ssl.SSLContext | None = None
    if url.is_tls:
        files = (settings.etcd_ca, settings.etcd_cert, settings.etcd_key)
        tls = client_context(*(local_path(each, "etcd files") if each else "" for each in files))
    password = ""
    if settings.etcd_password_file:
        try:
            password = Path(local_path(settings.etcd_password_file, "etcd_password_file")).read_text().rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"etcd_password_file {settings.etcd_password_file} cannot be read: {error}") from None
    return Etcd(
        url.members, tls=tls, user=settings.etcd_user, password=password, patience_seconds=ETCD_PATIENCE_SECONDS
    )


def advertised(config: Config, addresses: Mapping[str, str], hostname: str) -> dict[str, str]:
    """Where others reach the listeners of a node that listens at `addresses`."""
    peer_host = _place(config.peer)[0]
    fallback = config.advertised_host or (hostname if peer_host in EVERY_INTERFACE else peer_host)
    shown = {}
    for name, address in addresses.items():
        host, port = _place(address)
        shown[name] = format_address(fallback if host in EVERY_INTERFACE else host, port)
    given = {each.name: each.advertised for each in listeners_of(config, has_certificate=bool(config.tls_cert))}
    given["rocketmq"] = config.rocketmq_advertised
    if config.nsq_broadcast:
        ports = {"nsq": config.nsq_broadcast_tcp_port, "nsq-http": config.nsq_broadcast_http_port}
        for name, port in ports.items():
            own = _place(addresses[name])[1] if name in addresses else 0
            given[name] = format_address(config.nsq_broadcast, port or own)
    return shown | {name: address for name, address in given.items() if address and name in addresses}


async def _leave(host: str, port: int, *, sockets: Sequence[socket.socket] = ()) -> None:
    """Let clients wait for the first door."""
    close_all(sockets)


def _place(address: str) -> tuple[str, int]:
    found = parse_address(address)
    assert found is not None
    return found
