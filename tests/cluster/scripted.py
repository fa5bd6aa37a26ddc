"""A server in place of a member of etcd, whose answer to each request a test decides."""

from __future__ import annotations

import asyncio
import json
import ssl
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from tests.waiting import SECONDS

from headrace.cluster.etcd import Etcd

STATUS = "/v3/maintenance/status"
# Instead of an answer: say nothing and keep the connection; or close it.
SILENT, CUT = object(), object()

Answer = Callable[[str, dict[str, Any]], object]


def encode(text: str) -> str:
    return b64encode(text.encode()).decode()


def kv(key: str, value: str, revision: int, lease: int = 0) -> dict[str, str]:
    fields = {"key": encode(key), "value": encode(value), "mod_revision": str(revision)}
    return fields | ({"lease": str(lease)} if lease else {})


def header(revision: int = 7) -> dict[str, str]:
    return {"cluster_id": "1", "member_id": "2", "revision": str(revision)}


class Scripted:
    """One member. A dict is answered as JSON, (status, dict) likewise, bytes as they are, and then it closes."""

    def __init__(self, answer: Answer, version: str = "3.5.9", etcd_cluster: str = "1") -> None:
        self.answer = answer
        self.version = version
        self.etcd_cluster = etcd_cluster
        self.requests: list[tuple[str, dict[str, Any], str]] = []
        """Path, body and token of all but those for the status."""
        self.is_closed = False
        """Its status is for root alone, as from etcd 3.6 on."""
        self.is_mute = False
        """Accepts connections, and answers nothing, as a process that is stopped."""
        self.connections = 0
        self.writers: list[asyncio.StreamWriter] = []
        self.address = ("127.0.0.1", 0)
        self._server: asyncio.Server | None = None

    async def start(self, tls: ssl.SSLContext | None = None) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=tls)
        self.address = self._server.sockets[0].getsockname()[:2]

    def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self.writers:
            writer.transport.abort()

    def paths(self) -> list[str]:
        return [path for path, _, _ in self.requests]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writers.append(writer)
        try:
            while await self._serve_one(reader, writer):
                pass
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        fields = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if line)
        body = json.loads(await reader.readexactly(int(fields["content-length"])) or b"{}")
        path = head.split(" ")[1]
        if self.is_mute:
            answer: object = SILENT
        elif path == STATUS and self.is_closed:
            answer = (403, {"code": 7, "message": "etcdserver: permission denied"})
        elif path == "/version":
            answer = {"etcdserver": self.version, "etcdcluster": "3.0.0"}
        elif path == STATUS:
            answer = {"header": {"cluster_id": self.etcd_cluster}, "version": self.version}
        else:
            self.requests.append((path, body, fields.get("authorization", "")))
            answer = self.answer(path, body)
        if answer is SILENT:
            await reader.read(1)
            return False
        if answer is CUT:
            return False
        if isinstance(answer, bytes):
            writer.write(answer)
            await writer.drain()
            return False
        status = 200
        if isinstance(answer, tuple):
            status, answer = answer
        text = json.dumps(answer).encode()
        writer.write(b"HTTP/1.1 %d OK\r\nContent-Length: %d\r\n\r\n%b" % (status, len(text), text))
        await writer.drain()
        return True


@asynccontextmanager
async def members(*answers: Answer, **options: Any) -> AsyncIterator[tuple[Etcd, list[Scripted]]]:
    """A client of so many members, which waits longer than a busy machine takes: silence is for the simulator."""
    servers = [Scripted(answer) for answer in answers]
    for server in servers:
        await server.start()
    etcd = Etcd([server.address for server in servers], attempt_seconds=SECONDS, **options)
    try:
        yield etcd, servers
    finally:
        await etcd.close()
        for server in servers:
            server.stop()
