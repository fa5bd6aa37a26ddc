"""kill -9 in a loop while clients produce with acks=all.

Two clients write all the time. The idempotent one (librdkafka) goes on after each crash until everything it sent is
acknowledged: then each of its messages is there once, in order. The raw one sends each batch once over connections of
its own and never again: what was acknowledged is there at the offset that was said, and what was not may be there or
not, but never twice. For both, offsets have no holes. The process dies, not the machine, so `async` must keep these
promises like `sync`.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import Counter, deque
from pathlib import Path
from random import Random

import pytest
from bench import requests
from confluent_kafka.admin import AdminClient, NewTopic
from tests.acknowledged import (
    IDEMPOTENT,
    PARTITIONS,
    IdempotentClient,
    Places,
    check_acknowledged,
    check_idempotent,
    check_no_holes,
    check_once,
    read_all,
)
from tests.longer import LONGER
from tests.serve_process import ServeProcess
from tests.waiting import wait_until

from headrace.format import records

RAW = "raw"


class RawClient:
    """Batches of three records over plain sockets, several under way on each, and none sent twice."""

    OUTSTANDING = 5
    BATCH = 3

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._address = (host, int(port))
        self.places: Places = {}
        self.sent: set[bytes] = set()
        self.refusals: Counter[int] = Counter()
        self.overwritten = 0
        self._stopping = False
        self._threads = [threading.Thread(target=self._run, args=(index,)) for index in range(PARTITIONS)]
        for thread in self._threads:
            thread.start()

    def _run(self, partition: int) -> None:
        number = 0
        while not self._stopping:
            with contextlib.suppress(OSError), socket.create_connection(self._address, timeout=30) as sock:
                number = self._talk(sock, partition, number)
            time.sleep(0.01)

    def _talk(self, sock: socket.socket, partition: int, number: int) -> int:
        """Until the connection breaks. The number of the next batch."""
        waiting: deque[list[bytes]] = deque()
        received = b""
        try:
            while not (self._stopping and not waiting):
                while len(waiting) < self.OUTSTANDING and not self._stopping:
                    values = [b"%d/%d/%d" % (partition, number, each) for each in range(self.BATCH)]
                    number += 1
                    self.sent.update(values)
                    waiting.append(values)
                    batch = records.build([(int(time.time() * 1000), None, value, []) for value in values])
                    sock.sendall(requests.produce(RAW, [(partition, bytes(batch))]))
                got = sock.recv(65_536)
                if not got:
                    return number
                received += got
                while len(received) >= 4 and len(received) >= (size := 4 + int.from_bytes(received[:4])):
                    self._acknowledged(partition, received[4:size], waiting.popleft())
                    received = received[size:]
        except OSError:
            pass
        return number

    def _acknowledged(self, partition: int, reply: bytes, values: list[bytes]) -> None:
        # Correlation id, no tags, one topic and its name, one partition and its index, error, base offset.
        at = 4 + 1 + 1 + 1 + len(RAW) + 1 + 4
        error = int.from_bytes(reply[at : at + 2])
        if error:
            self.refusals[error] += 1
            return
        base = int.from_bytes(reply[at + 2 : at + 10])
        for position, value in enumerate(values):
            # Two batches acknowledged at one place: the first is lost, though something is there.
            if (partition, base + position) in self.places:
                self.overwritten += 1
            self.places[partition, base + position] = value

    def stop(self) -> None:
        self._stopping = True
        for thread in self._threads:
            thread.join()


def both_go_on(idempotent: IdempotentClient, raw: RawClient, broker: ServeProcess) -> None:
    """Wait until both clients got something acknowledged."""
    before = len(idempotent.places), len(raw.places)
    wait_until(
        lambda: len(idempotent.places) > before[0] and len(raw.places) > before[1],
        lambda: (
            f"{len(idempotent.places) - before[0]} and {len(raw.places) - before[1]} acknowledged, "
            f"{idempotent.failures[:3]} failed, {raw.refusals} refused; {broker.words()}"
        ),
    )


def kill_again_and_again(folder: Path, durability: str, kills: int, seed: int) -> None:
    random = Random(seed)
    with ServeProcess(folder / "data", "--durability", durability, "--checkpoint-ms", "700") as broker:
        admin = AdminClient({"bootstrap.servers": broker.kafka, "log_level": 0})
        made = admin.create_topics([NewTopic(IDEMPOTENT, PARTITIONS), NewTopic(RAW, PARTITIONS)])
        for future in made.values():
            future.result(30)
        idempotent, raw = IdempotentClient(broker.kafka), RawClient(broker.kafka)
        try:
            for _ in range(kills):
                both_go_on(idempotent, raw, broker)
                time.sleep(random.uniform(0.0, 0.5))
                broker.kill()
                broker.start()
        finally:
            raw.stop()
            idempotent.stop()

        check_idempotent(broker.kafka, idempotent)
        found = read_all(broker.kafka, RAW)
        check_no_holes(found)
        check_acknowledged(found, raw.places)
        assert set(check_once(found)) <= raw.sent
        assert not raw.refusals
        assert not raw.overwritten
        broker.stop()


@pytest.mark.parametrize("durability", ["sync", "async"])
def test_nothing_acknowledged_is_lost_when_the_process_is_killed(tmp_path: Path, durability: str) -> None:
    kill_again_and_again(tmp_path, durability, kills=5, seed=1)


def test_the_check_sees_a_loss(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"missing|twice|hole"):
        kill_again_and_again(tmp_path, "memory", kills=1, seed=2)


@pytest.mark.long
@pytest.mark.timeout(1800 * LONGER)
@pytest.mark.parametrize("durability", ["sync", "async"])
@pytest.mark.parametrize("seed", range(3))
def test_nothing_acknowledged_is_lost_over_many_kills(tmp_path: Path, durability: str, seed: int) -> None:
    kill_again_and_again(tmp_path, durability, kills=20 * LONGER, seed=seed)
