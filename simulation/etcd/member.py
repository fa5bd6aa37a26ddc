"""One member of a simulated etcd: an HTTP server for the JSON gateway."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import h11

from headrace.runtime import Runtime
from simulation.etcd import gateway
from simulation.etcd.faults import NO_FAULTS
from simulation.etcd.gateway import Failure, Fields, encode, lease_not_found
from simulation.etcd.store import LeaseNotFound, Store

if TYPE_CHECKING:
    from simulation.etcd.cluster import EtcdCluster
    from simulation.machine import Machine

PORT = 2379
TRANSACTION = "/v3/kv/txn"
VERSION = "3.5.21"
# How often the leader looks for leases whose time is over.
LEASE_CHECK_S = 0.5
# How long a member without a leader keeps a request.
REQUEST_TIMEOUT_S = 7.0

CHANGES: dict[str, Callable[[Store, Fields], Fields]] = {
    "/v3/kv/range": gateway.range_keys,
    "/v3/kv/put": gateway.put,
    "/v3/kv/deleterange": gateway.delete_range,
    TRANSACTION: gateway.transact,
}


class _Lost(Exception):
    """No answer is sent, ever."""


class Member:
    """A machine that serves the store, while it is up."""

    def __init__(self, etcd: EtcdCluster, machine: Machine, id: int) -> None:
        self.machine = machine
        self._etcd = etcd
        self._id = id
        self._world = machine.world
        self._leases: dict[str, Callable[[Fields], Fields]] = {
            "/v3/lease/grant": self._grant,
            "/v3/lease/keepalive": self._keep_alive,
            "/v3/lease/revoke": self._revoke,
            "/v3/lease/timetolive": self._time_to_live,
        }

    @property
    def is_running(self) -> bool:
        process = self.machine.process
        return process is not None and process.ending is None and not process.paused

    def start(self) -> None:
        if self.machine.process is None or self.machine.process.ending is not None:
            self.machine.start(self._main)

    def now(self) -> float:
        """By the member's own clock."""
        return self.machine.clock.local(self._world.time)

    async def _main(self, runtime: Runtime) -> None:
        await asyncio.start_server(self._serve, "0.0.0.0", PORT)
        while True:
            await asyncio.sleep(LEASE_CHECK_S)
            if self._etcd.leader() is self:
                self._etcd.store.expire(self.now(), self._on_expired)

    def _on_expired(self) -> None:
        self._world.counts["lease expired"] += 1
        self._etcd.on_changed()

    # HTTP.

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        http = h11.Connection(h11.SERVER)
        try:
            while http.our_state is h11.IDLE:
                if not await self._serve_one(http, reader, writer):
                    break
                http.start_next_cycle()
        except (_Lost, ConnectionError, h11.ProtocolError):
            pass
        finally:
            writer.close()

    async def _serve_one(
        self, http: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Answer one request; whether another may follow."""
        target, body = "", b""
        while True:
            event = http.next_event()
            if event is h11.NEED_DATA:
                http.receive_data(await reader.read(65_536))
            elif isinstance(event, h11.Request):
                target = event.target.decode()
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                break
            else:
                return False

        def send(*events: h11.Event) -> None:
            writer.write(b"".join(http.send(event) or b"" for event in events))

        headers = [("Content-Type", "application/json"), ("Grpc-Metadata-Content-Type", "application/grpc")]
        try:
            if target == "/v3/watch":
                send(h11.Response(status_code=HTTPStatus.OK, headers=[*headers, ("Transfer-Encoding", "chunked")]))
                await self._watch(gateway.decode_request(body).get("create_request", {}), send, reader)
                return False
            answer = await self._answer(target, body, reader)
            status = int(HTTPStatus.OK)
        except Failure as failure:
            answer, status = failure.body(), failure.status
        headers.append(("Content-Length", str(len(answer))))
        send(h11.Response(status_code=status, headers=headers), h11.Data(data=answer), h11.EndOfMessage())
        return True

    async def _answer(self, path: str, body: bytes, reader: asyncio.StreamReader) -> bytes:
        if path == "/version":
            return json.dumps({"etcdserver": VERSION, "etcdcluster": VERSION[:4] + "0"}).encode()
        fields = gateway.decode_request(body or b"{}")
        if path == "/v3/maintenance/status":
            return json.dumps(self._status()).encode()
        if path not in CHANGES and path not in self._leases:
            raise Failure(gateway.NOT_FOUND, "Not Found")
        faults, rng, counts = self._etcd.faults, self._etcd.rng, self._world.counts
        if faults.only_transactions and path != TRANSACTION:
            faults = NO_FAULTS
        if rng.random() < faults.request_lost:
            counts["etcd request lost"] += 1
            await self._hang()
        if rng.random() < faults.late:
            await asyncio.sleep(rng.uniform(0, 2 * faults.late_s))
            counts["etcd late, given up" if reader.at_eof() else "etcd late"] += 1
        await self._find_leader()
        revision = self._etcd.store.revision
        answer = self._apply(path, fields)
        if reader.at_eof() and self._etcd.store.revision > revision:
            self._etcd.late.add(self._etcd.store.revision)
        if rng.random() < faults.answer_lost:
            counts["etcd answer lost"] += 1
            await self._hang()
        return json.dumps({"result": answer} if path == "/v3/lease/keepalive" else answer).encode()

    async def _hang(self) -> None:
        """No answer comes. Sometimes the connection ends."""
        await asyncio.sleep(0.0 if self._etcd.rng.random() < 0.5 else 60.0)
        raise _Lost

    async def _find_leader(self) -> None:
        """Wait for a leader and a majority."""
        waited = 0.0
        while self._etcd.leader() is None or not self._etcd.has_majority(self):
            if waited >= REQUEST_TIMEOUT_S:
                self._world.counts["etcd without a leader"] += 1
                raise Failure(gateway.UNAVAILABLE, "etcdserver: request timed out")
            await asyncio.sleep(0.1)
            waited += 0.1

    # Requests.

    def _apply(self, path: str, fields: Fields) -> Fields:
        """Carry out a request, at once and whole."""
        etcd = self._etcd
        self._world.note(f"etcd {path} {json.dumps(fields)}")
        answer = CHANGES[path](etcd.store, fields) if path in CHANGES else self._leases[path](fields)
        if etcd.store.commit():
            etcd.on_changed()
        return {"header": self._header()} | answer

    def _header(self) -> Fields:
        etcd = self._etcd
        return encode(
            {
                "cluster_id": etcd.id,
                "member_id": self._id,
                "revision": etcd.store.revision,
                "raft_term": etcd.term,
            }
        )

    def _status(self) -> Fields:
        leader = self._etcd.leader()
        return {"header": self._header()} | encode(
            {
                "version": VERSION,
                "dbSize": 20_480,
                "leader": leader._id if leader else 0,
                "raftIndex": self._etcd.store.revision,
                "raftTerm": self._etcd.term,
            }
        )

    def _lessor_now(self) -> float:
        leader = self._etcd.leader()
        assert leader is not None
        return leader.now()

    def _grant(self, fields: Fields) -> Fields:
        store = self._etcd.store
        id = int(fields.get("ID", 0)) or self._etcd.rng.getrandbits(62) + 1
        if id in store.leases:
            raise Failure(gateway.FAILED_PRECONDITION, "etcdserver: lease already exists")
        lease = store.grant(id, int(fields.get("TTL", 0)), self._lessor_now())
        return encode({"ID": lease.id, "TTL": lease.ttl})

    def _keep_alive(self, fields: Fields) -> Fields:
        id, now = int(fields.get("ID", 0)), self._lessor_now()
        try:
            lease = self._etcd.store.lease(id, now)
        except LeaseNotFound:
            return encode({"ID": id})
        lease.expires = now + lease.ttl
        return encode({"ID": lease.id, "TTL": lease.ttl})

    def _revoke(self, fields: Fields) -> Fields:
        try:
            self._etcd.store.revoke(int(fields.get("ID", 0)))
        except LeaseNotFound:
            raise lease_not_found() from None
        self._etcd.on_changed()
        return {}

    def _time_to_live(self, fields: Fields) -> Fields:
        id, now = int(fields.get("ID", 0)), self._lessor_now()
        try:
            lease = self._etcd.store.lease(id, now)
        except LeaseNotFound:
            return encode({"ID": id, "TTL": -1})
        keys = [b64encode(key).decode() for key in sorted(lease.keys)] if fields.get("keys") else []
        return encode({"ID": id, "TTL": int(lease.expires - now), "grantedTTL": lease.ttl, "keys": keys})

    async def _watch(self, fields: Fields, send: Callable[..., None], reader: asyncio.StreamReader) -> None:
        """Send the changes of a range of keys, as they come."""
        etcd = self._etcd
        key, end = gateway.key_range(fields)
        start = int(fields.get("start_revision", 0))
        seen = start - 1 if start else etcd.store.revision

        def send_result(**result: Any) -> None:
            line = json.dumps({"result": {"header": self._header()} | result}).encode() + b"\n"
            send(h11.Data(data=line))

        send_result(created=True)
        signal = asyncio.Event()
        etcd.changed[signal] = None
        try:
            while not reader.at_eof():
                if etcd.leader() is not None and etcd.has_majority(self):
                    events = etcd.store.events(seen)
                    seen = max(seen, etcd.store.revision)
                    found = [event for event in events if gateway.matches(event.kv, key, end)]
                    if found and etcd.rng.random() < etcd.faults.watch_hang:
                        self._world.counts["etcd watch hung"] += 1
                        await asyncio.sleep(3600)
                    if found:
                        send_result(events=[gateway.encode_event(event) for event in found])
                try:
                    async with asyncio.timeout(1.0):
                        await signal.wait()
                except TimeoutError:
                    continue
                signal.clear()
        finally:
            del etcd.changed[signal]
