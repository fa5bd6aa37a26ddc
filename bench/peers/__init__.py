"""The servers that are measured, each as a process on loopback with its data in a folder of its own."""

from __future__ import annotations

import os
import random
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from bench.admin import Admin

READY_SECONDS = 60.0


class Missing(Exception):
    """There is no such server to be had here, and why."""


class Server(Protocol):
    """A server in a process."""

    name: str
    version: str
    port: int

    def start(self) -> float:
        """Start with an empty data folder; seconds until it answered."""

    def stop(self) -> None:
        """Stop and forget all data."""

    @property
    def pid(self) -> int: ...

    @property
    def pids(self) -> list[int]:
        """The processes whose work is the server's."""


class Peer(Server, Protocol):
    """One that speaks Kafka's protocol."""

    durable: dict[str, dict[str, str]]
    """The topic settings by which an acknowledgement means `sync` or `async`."""
    replicas: Sequence[int]
    """The nodes that have each partition, the leader first; none where there is one."""


# The descriptors that keep ports for this process, until it ends.
_kept: list[int] = []


def free_port() -> int:
    """A port that is free, and stays so for the servers that this process starts: the kernel gives it to no connection,
    and `free_port` to no other caller, here or in another process, also while a server is started again.

    A socket is bound to it that does not listen. Servers reuse addresses and may listen beside it; a probe, which does
    not, is refused."""
    first_given = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.randrange(first_given // 2, first_given)
        probe = socket.socket()
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            probe.close()
            continue
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _kept.append(probe.detach())
        return port


def has_metadata(port: int, brokers: int = 1) -> bool:
    """Whether a server that speaks Kafka's protocol names so many brokers. Raises OSError while it does not answer."""
    with Admin("127.0.0.1", port, 5) as admin:
        return admin.brokers() >= brokers


def end(process: subprocess.Popen[bytes]) -> None:
    """Stop a process, kindly first."""
    process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(30)


def cpu_seconds(pid: int) -> dict[str, int]:
    """Nanoseconds on a CPU of every thread of a process and of its children, by thread."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            found[task.name] = int((task / "schedstat").read_text().split()[0])
            children = (task / "children").read_text().split()
        except OSError:
            continue  # The thread has ended since it was listed.
        for child in children:
            found |= cpu_seconds(int(child))
    return found


def cpu_of_all(pids: Sequence[int]) -> dict[str, int]:
    """The same of several processes."""
    found: dict[str, int] = {}
    for pid in pids:
        found |= cpu_seconds(pid)
    return found


def cpu_between(before: dict[str, int], after: dict[str, int]) -> float:
    """Seconds on a CPU from one reading to another. Threads that ended in between are lost: servers keep theirs."""
    return sum(nanoseconds - before.get(thread, 0) for thread, nanoseconds in after.items()) / 1e9


def resident_mb(pid: int) -> float:
    """Resident memory of a process and of its children, in MB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6 + sum(resident_mb(int(child)) for child in children)
