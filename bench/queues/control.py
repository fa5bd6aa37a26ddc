"""Making, filling and dropping queues around a measurement, in each server's own way. Nothing here is measured."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Protocol

from bench.peers import Server
from bench.queues.wires import TIMEOUT, Amqp, Nsq


class QueueServer(Server, Protocol):
    """A server that speaks one of the wires."""

    wire: str
    http_port: int
    """Of nsqd's HTTP interface; AMQP needs none."""

    @property
    def folder(self) -> Path:
        """Where its data lies."""


def _http(server: QueueServer, path: str, post: bool = True) -> bytes:
    asked = urllib.request.Request(f"http://127.0.0.1:{server.http_port}{path}", method="POST" if post else "GET")
    with urllib.request.urlopen(asked, timeout=TIMEOUT) as reply:
        return bytes(reply.read())


def make(server: QueueServer, topic: str) -> None:
    if server.wire == "amqp":
        Amqp(server.port).declare(topic)
    else:
        _http(server, f"/topic/create?topic={topic}")
        _http(server, f"/channel/create?topic={topic}&channel={Nsq.CHANNEL}")


def drop(server: QueueServer, topic: str) -> None:
    if server.wire == "amqp":
        Amqp(server.port).delete(topic)
    else:
        _http(server, f"/topic/delete?topic={topic}")


def depth(server: QueueServer, topic: str) -> int:
    """How many messages wait."""
    if server.wire == "amqp":
        return Amqp(server.port).declare(topic)
    stats = json.loads(_http(server, f"/stats?format=json&topic={topic}", post=False))
    return int(stats["topics"][0]["channels"][0]["depth"])


_numbers = count(1)


@contextmanager
def queue(server: QueueServer) -> Iterator[str]:
    """A queue that lives as long as a measurement. All names have one length."""
    topic = f"bench-{next(_numbers):06d}"
    make(server, topic)
    try:
        yield topic
    finally:
        drop(server, topic)


def check(server: QueueServer, topic: str, waiting: int) -> None:
    """So many messages wait: a server that loses some, or keeps what was acknowledged, must not look fast."""
    until = time.monotonic() + 10
    while (found := depth(server, topic)) != waiting:
        if time.monotonic() > until:
            raise RuntimeError(f"{server.name} holds {found} messages, {waiting} should wait")
        time.sleep(0.05)
