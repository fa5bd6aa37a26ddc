"""What clients see while nodes come and go: an idempotent producer of librdkafka, at a steady rate, in one outage."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient

from bench.measure import measure
from bench.peers.groups import KafkaGroup, Nodes
from bench.rows import KIB, QUICK, Figure, Scale, Topic, bulk_spec, warm_up

RATE = 500
CALM_SECONDS = 2.0
OUTAGE_SECONDS = 60.0
ADDING_SECONDS = 120.0
FLUSH_SECONDS = 10.0
# Work of which the node that leads all partitions answers everything.
WARMING = ("bulk", "one", "many", "pipelined")
# A client that waits for a silent node for longer measures itself.
IMPATIENT = {"socket.timeout.ms": 1000, "request.timeout.ms": 1000}


@dataclass(frozen=True)
class Outage:
    """One kind. `run` does it on servers that it starts and stops."""

    name: str
    title: str
    run: Callable[[Nodes, Scale], list[Figure]]
    rounds: int


class Client:
    """An idempotent producer that notes when its messages were acknowledged, and how long each took."""

    def __init__(self, bootstrap: str, topic: str, **special: int) -> None:
        settings = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 0, "log_level": 0}
        backoff = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100, "retry.backoff.ms": 20}
        refresh = {"topic.metadata.refresh.interval.ms": 500}
        self._producer = Producer({**settings, **backoff, **refresh, **special})
        self._topic = topic
        self.times: list[float] = []
        self.latencies: list[float] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        begin, sent = time.monotonic(), 0
        while not self._stopping.is_set():
            while sent < (time.monotonic() - begin) * RATE:
                self._producer.produce(self._topic, b"%d" % sent, on_delivery=self._delivered)
                sent += 1
            self._producer.poll(0.001)
        self._producer.flush(FLUSH_SECONDS)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.times.append(time.monotonic())
            self.latencies.append(message.latency() or 0.0)

    def wait(self, after: float) -> None:
        """Until something that is acknowledged later than that."""
        until = time.monotonic() + OUTAGE_SECONDS
        while not self.times or self.times[-1] < after:
            if time.monotonic() > until:
                raise TimeoutError("nothing is acknowledged any more")
            time.sleep(0.005)

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()


def kill(peer: Nodes, _: Scale) -> list[Figure]:
    """kill -9 of the node that leads everything: from the last acknowledgement before it to the next one."""

    def break_it(client: Client) -> float:
        at = time.monotonic()
        peer.kill_leader()
        client.wait(at + 0.05)
        time.sleep(CALM_SECONDS)
        return at

    return _gap(peer, break_it)


def pause(peer: Nodes, _: Scale) -> list[Figure]:
    """SIGSTOP of it: nobody is refused, and nobody hears anything."""

    def break_it(client: Client) -> float:
        at = time.monotonic()
        with peer.silent_leader():
            client.wait(at + 0.3)
            time.sleep(CALM_SECONDS)
        return at

    return _gap(peer, break_it, **IMPATIENT)


def _gap(peer: Nodes, break_it: Callable[[Client], float], **special: int) -> list[Figure]:
    try:
        _start(peer)
        client = Client(peer.bootstrap, Topic(peer, 6).__enter__().name, **special)
        try:
            client.wait(0)
            time.sleep(CALM_SECONDS)
            at = break_it(client)
        finally:
            client.stop()
        times = [each for each in client.times if each > at - CALM_SECONDS]
        return [Figure("s without an acknowledgement", max(after - before for before, after in pairwise(times)))]
    finally:
        peer.stop()


def add(peer: Nodes, scale: Scale) -> list[Figure]:
    """A replica of all that there is begins with nothing, while a producer goes on. Defaults limit what it copies."""
    try:
        _start(peer)
        topic = Topic(peer, 6).__enter__()
        topic.check(measure(peer, bulk_spec(topic, scale, 128 * KIB, 1)))
        peer.stop_last()
        client = Client(peer.bootstrap, topic.name)
        try:
            client.wait(0)
            time.sleep(CALM_SECONDS)
            first = len(client.latencies)
            time.sleep(2 * CALM_SECONDS)
            calm = client.latencies[first:]
            begin, first = time.monotonic(), len(client.latencies)
            peer.start_last()
            _wait_in_sync(peer, topic.name)
            seconds, copying = time.monotonic() - begin, client.latencies[first:]
        finally:
            client.stop()
        return [
            Figure("ms, 99 of 100, before", _percentile(calm)),
            Figure("ms, 99 of 100, while it copies", _percentile(copying)),
            Figure("ms, the longest, while it copies", max(copying) * 1000),
            Figure(f"s until it is in sync, of {scale.bulk_bytes >> 20} MiB", seconds),
        ]
    finally:
        peer.stop()


def _start(peer: Nodes) -> None:
    peer.start()
    if isinstance(peer, KafkaGroup):
        warm_up(peer, QUICK, WARMING)


def _wait_in_sync(peer: Nodes, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": peer.bootstrap, "log_level": 0})
    until = time.monotonic() + ADDING_SECONDS
    while True:
        partitions = admin.list_topics(topic, timeout=10).topics[topic].partitions.values()
        if partitions and all(len(each.isrs) == len(peer.replicas) for each in partitions):
            return
        if time.monotonic() > until:
            raise TimeoutError(f"the new replica of {peer.name} is not in sync after {ADDING_SECONDS:g} s")
        time.sleep(0.1)


def _percentile(latencies: Sequence[float]) -> float:
    return sorted(latencies)[math.ceil(len(latencies) * 0.99) - 1] * 1000
