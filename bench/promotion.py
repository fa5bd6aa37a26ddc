"""How long a group of three has no leader when its leader is killed, with much to keep.

    python -m bench.promotion                                   1,000 topics, 1,000 groups, a million queue entries
    python -m bench.promotion --entries 10000000
    python -m bench.promotion --topics 0 --groups 0 --entries 0

An entry is a message that a consumer has sent back, to come again in an hour: the most that a queue can have to
remember of one. It prints, and asserts nothing:

    gap       from the last acknowledgement of an idempotent producer (confluent-kafka) to the next one
    its CPU   what the next leader's process spent from the kill to the first acknowledgement, on all of its threads
    promoted  of the next leader: from the change of its role until its doors are open
    groups    until the committed offsets of all groups are read, one group after the other, from a leader that is new
    queue     then, until a message that is published to a queue is delivered
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from bench.peers import free_port
from bench.peers.etcd import EtcdPeers
from bench.queues.wires import connect, exactly
from headrace.client import Client

NODES = (1, 2, 3)
QUEUES = 10
BODY = b"x" * 20
FRAME_BYTES = 4 + 4 + 8 + 2 + 16 + len(BODY)
HEARTBEAT = (15).to_bytes(4) + (0).to_bytes(4) + b"_heartbeat_"
PUBLISHED = 2_000
DELAY_MS = 3_600_000
TOPIC = "measured"
SECONDS = 300.0


class Group:
    """Three nodes and an etcd."""

    def __init__(self, folder: Path) -> None:
        self.etcd = EtcdPeers(1, folder / "etcd")
        self.etcd.start()
        self.etcd.wait()
        self.url = f"etcd://{self.etcd.members[0].address}/bench"
        self._folder = folder
        self.processes: dict[int, subprocess.Popen[str]] = {}
        self.addresses: dict[int, dict[str, str]] = {}
        self.cluster("init", *map(str, NODES))
        for number in NODES:
            self._start(number)

    def cluster(self, command: str, *arguments: str) -> str:
        line = [sys.executable, "-m", "headrace.cli", "cluster", command, "--cluster", self.url, *arguments]
        return subprocess.run(line, check=True, capture_output=True, text=True).stdout

    def _start(self, number: int) -> None:
        doors = ("kafka", "http", "nsq")
        off = ("nsq-http", "nsq-https", "lookup", "lookup-http", "rocketmq", "rocketmq-namesrv", "rocketmq-grpc")
        line = [sys.executable, "-m", "headrace.cli", "serve", "--cluster", self.url, "--node-id", str(number)]
        line += ["--data", str(self._folder / str(number)), "--peer", f"127.0.0.1:{free_port()}"]
        line += [word for door in doors for word in (f"--{door}", f"127.0.0.1:{free_port()}")]
        line += [word for door in off for word in (f"--{door}", "off")]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
        with self.log(number).open("w") as log:
            process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=log, text=True, env=environment)
        assert process.stdout is not None
        words = process.stdout.readline().split()[1:]
        self.processes[number] = process
        self.addresses[number] = dict(word.split("=") for word in words)

    def log(self, number: int) -> Path:
        return self._folder / f"{number}.log"

    def leader(self, *, other_than: int = 0, in_sync: int = 2) -> int:
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            group = json.loads(self.cluster("status", "--json"))["group"]
            leader = group["leader"]
            if leader and leader["node"] != other_than and len(group["isr"]) >= in_sync:
                return int(leader["node"])
        raise TimeoutError("no node leads")

    def events(self, number: int, event: str) -> list[dict[str, Any]]:
        lines = map(json.loads, self.log(number).read_text().splitlines())
        return [each for each in lines if each.get("event") == event]

    def cpu(self, number: int) -> float:
        """Seconds that a node's process has spent on a CPU."""
        threads = Path(f"/proc/{self.processes[number].pid}/task").glob("*/schedstat")
        return sum(int(each.read_text().split()[0]) for each in threads) / 1e9

    def stop(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()
        self.etcd.stop()


def send_back(address: str, topic: str, count: int) -> None:
    """Fill a queue with messages that come again in an hour."""
    sock = connect(int(address.rpartition(":")[2]))
    sock.sendall(b"  V2")
    sent = 0
    while sent < count:
        bodies = (len(BODY).to_bytes(4) + BODY) * min(PUBLISHED, count - sent)
        number = min(PUBLISHED, count - sent)
        body = number.to_bytes(4) + bodies
        sock.sendall(b"MPUB %s\n" % topic.encode() + len(body).to_bytes(4) + body)
        size = int.from_bytes(exactly(sock, 4))
        assert exactly(sock, size)[4:] == b"OK"
        sent += number
    sock.sendall(b"SUB %s q\nRDY 2500\n" % topic.encode())
    size = int.from_bytes(exactly(sock, 4))
    assert exactly(sock, size)[4:] == b"OK"
    taken, buffer = 0, b""
    while taken < count:
        buffer += sock.recv(1 << 20)
        if HEARTBEAT in buffer:
            buffer = buffer.replace(HEARTBEAT, b"")
            sock.sendall(b"NOP\n")
        whole = len(buffer) // FRAME_BYTES
        ids = [buffer[at + 18 : at + 34] for at in range(0, whole * FRAME_BYTES, FRAME_BYTES)]
        sock.sendall(b"".join([b"REQ %s %d\n" % (id, DELAY_MS) for id in ids]))
        taken += whole
        buffer = buffer[whole * FRAME_BYTES :]
    sock.sendall(b"CLS\n")
    while b"CLOSE_WAIT" not in buffer:
        buffer += sock.recv(1 << 16)


async def fill(kafka: str, topics: int, groups: int) -> None:
    async with Client(kafka) as client:
        names = [f"topic-{number}" for number in range(topics)]
        for first in range(0, topics, 50):
            await asyncio.gather(*(client.admin.create_topic(name, 1) for name in names[first : first + 50]))
        async with client.producer() as producer:
            for name in names:
                await producer.send(name, b"something")
        for first in range(0, groups, 50):
            numbers = range(first, min(first + 50, groups))
            await asyncio.gather(
                *(client.admin.commit(f"group-{each}", {(names[each % topics], 0): 1}) for each in numbers)
            )


async def read_groups(kafka: str, first: int, last: int) -> None:
    async with Client(kafka) as client:
        for number in range(first, last):
            await client.admin.committed(f"group-{number}")


class Acknowledged:
    """A producer that never ceases, and the times of its acknowledgements."""

    def __init__(self, bootstrap: str) -> None:
        backoff = {"reconnect.backoff.ms": 5, "reconnect.backoff.max.ms": 20, "retry.backoff.ms": 5}
        settings = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 0, "log_level": 0}
        self._producer = Producer({**settings, **backoff})
        self.times: list[float] = []
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._ends.is_set():
            self._producer.produce(TOPIC, b"x", on_delivery=self._delivered)
            self._producer.poll(0.002)

    def _delivered(self, error: object, _: object) -> None:
        if error is None:
            self.times.append(time.monotonic())

    def wait(self, since: float) -> None:
        until = time.monotonic() + SECONDS
        while not self.times or self.times[-1] < since:
            if time.monotonic() > until:
                raise TimeoutError("nothing is acknowledged")
            time.sleep(0.01)

    def gap(self, since: float) -> float:
        """The longest time without an acknowledgement that ended after that."""
        return max(b - a for a, b in zip(self.times, self.times[1:], strict=False) if b > since)

    def end(self) -> None:
        self._ends.set()
        self._thread.join()


def measure(topics: int, groups: int, entries: int) -> None:
    with tempfile.TemporaryDirectory(prefix="headrace-promotion-") as name:
        group = Group(Path(name))
        try:
            leader = group.leader(in_sync=3)
            addresses = group.addresses[leader]
            asyncio.run(fill(addresses["kafka"], topics, groups))
            for number in range(QUEUES if entries else 0):
                send_back(addresses["nsq"], f"queue-{number}", entries // QUEUES)
                print(f"filled {(number + 1) * (entries // QUEUES):,} entries", file=sys.stderr)
            producer = Acknowledged(",".join(each["kafka"] for each in group.addresses.values()))
            producer.wait(time.monotonic())
            time.sleep(5)
            before = {number: group.cpu(number) for number in NODES if number != leader}
            killed = time.monotonic()
            group.processes[leader].kill()
            group.processes[leader].wait()
            producer.wait(killed + 0.1)
            spent = {number: group.cpu(number) - then for number, then in before.items()}
            after = group.leader(other_than=leader)
            kafka = group.addresses[after]["kafka"]
            found = {"its CPU": spent[after], "gap": producer.gap(killed)}
            began = time.monotonic()
            if groups:
                asyncio.run(read_groups(kafka, 0, groups))
                found["groups"] = time.monotonic() - began
            began = time.monotonic()
            if entries:
                first_message(group.addresses[after])
                found["queue"] = time.monotonic() - began
            producer.end()
            promoted = group.events(after, "serves as leader")[-1]["milliseconds"]
        finally:
            group.stop()
    print(
        f"{topics:,} topics, {groups:,} groups, {entries:,} queue entries: promoted {promoted / 1000:.2f} s, ", end=""
    )
    print(", ".join(f"{what} {seconds:.2f} s" for what, seconds in found.items()))


def first_message(addresses: dict[str, str]) -> None:
    """Publish to a queue, and read that."""
    asked = urllib.request.Request(f"http://{addresses['http']}/topics/queue-0", b"now", method="POST")
    with urllib.request.urlopen(asked, timeout=SECONDS):
        pass
    sock = connect(int(addresses["nsq"].rpartition(":")[2]))
    sock.sendall(b"  V2SUB queue-0 q\nRDY 1\n")
    got = b""
    while b"now" not in got:
        got += sock.recv(1 << 16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topics", type=int, default=1_000)
    parser.add_argument("--groups", type=int, default=1_000)
    parser.add_argument("--entries", type=int, default=1_000_000)
    given = parser.parse_args()
    measure(given.topics, given.groups, given.entries)


if __name__ == "__main__":
    main()
