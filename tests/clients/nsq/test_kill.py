"""kill -9 of consumers and of the broker, under load.

Everything that was acknowledged to a publisher is delivered at least once. What a consumer finished is never delivered
again once the broker has the FIN, unless the broker itself is killed: then what was finished within one flush interval
before the kill may come again, and nothing else.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from random import Random

import pytest
from tests.clients.nsq.clients import Client
from tests.clients.nsq.conftest import NsqServing, nsq_serving
from tests.clients.nsq.raw import Raw
from tests.longer import LONGER
from tests.waiting import wait_until

TOPIC, CHANNEL = "t", "c"
FLUSH_MS = 100
# A flush that is due takes its turn on the loop, and the loop takes its turn on a busy machine.
SLACK_SECONDS = 2.0


class Publisher:
    """Sends small batches, each once, over connections of its own, and remembers what was acknowledged."""

    BATCH = 5

    def __init__(self, address: str) -> None:
        self._address = address
        self.acknowledged: set[str] = set()
        self.sent: set[str] = set()
        self._stopping = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping:
            with contextlib.suppress(OSError):
                raw = Raw(self._address)
                try:
                    self._talk(raw)
                finally:
                    raw.close()
            time.sleep(0.01)

    def _talk(self, raw: Raw) -> None:
        while not self._stopping:
            bodies = [str(len(self.sent) + each) for each in range(self.BATCH)]
            self.sent.update(bodies)
            raw.mpub(TOPIC, [body.encode() for body in bodies])
            self.acknowledged.update(bodies)
            time.sleep(0.004)

    def stop(self) -> None:
        self._stopping = True
        self._thread.join()


class FencedConsumer:
    """`raw.py` in a process, and all that it said."""

    def __init__(self, address: str) -> None:
        self._command = [sys.executable, "-m", "tests.clients.nsq.raw", address, TOPIC, CHANNEL]
        self.lines: list[str] = []
        self._start()

    def _start(self) -> None:
        self._process = process = subprocess.Popen(
            self._command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        out = process.stdout
        self._thread = threading.Thread(target=lambda: self.lines.extend(line for line in out if line.endswith("\n")))
        self._thread.start()

    def kill(self) -> None:
        assert self._process.poll() is None, self._process.communicate()[1]
        self._process.kill()
        self._thread.join()
        self._process.communicate()

    def again(self) -> None:
        self.kill()
        self._start()


class Life:
    """A broker under load, and what happened to it."""

    def __init__(self, served: NsqServing, consumers: int) -> None:
        self._served = served
        Raw(served.doors.nsq).subscribe(TOPIC, CHANNEL, 0)
        self.publisher = Publisher(served.doors.nsq)
        self.consumers = [FencedConsumer(served.doors.nsq) for _ in range(consumers)]
        self.kills: list[float] = []

    def kill_broker(self) -> None:
        self._served.serving.kill()
        self.kills.append(time.monotonic())
        self._served.serving.start()

    def flow(self) -> None:
        """Until more messages were acknowledged and delivered."""
        before = len(self.publisher.acknowledged), sum(len(each.lines) for each in self.consumers)
        wait_until(
            lambda: (
                len(self.publisher.acknowledged) > before[0] + 20
                and sum(len(each.lines) for each in self.consumers) > before[1] + 20
            ),
            lambda: f"{before} {len(self.publisher.acknowledged)} {self._served.serving.words()}",
        )

    def publish_more(self) -> None:
        """Until more messages were acknowledged."""
        before = len(self.publisher.acknowledged)
        wait_until(lambda: len(self.publisher.acknowledged) > before + 20, self._served.serving.words)

    def end(self) -> None:
        """Let the consumers finish everything."""
        self.publisher.stop()
        try:
            self._served.doors.wait_until_settled(TOPIC, CHANNEL)
        finally:
            for each in self.consumers:
                each.kill()

    def check(self) -> int:
        """Nothing is lost, nothing is made up, and what was done stays done. How often something came again."""
        got: dict[str, list[float]] = defaultdict(list)
        done: dict[str, float] = {}
        for consumer in self.consumers:
            for line in consumer.lines:
                what, body, *_, at = json.loads(line)
                if what == "got":
                    got[body].append(at)
                else:
                    done[body] = min(at, done.get(body, at))
        lost = self.publisher.acknowledged - set(got)
        assert not lost, f"{len(lost)} of {len(self.publisher.acknowledged)} acknowledged messages never came"
        assert set(got) <= self.publisher.sent
        for body, at in done.items():
            for again in (each for each in got[body] if each > at):
                # A consumer may read the last answers of a broker a moment after its end.
                excuse = [kill for kill in self.kills if at - SLACK_SECONDS < kill < again]
                assert excuse, f"{body} came again {again - at:.3f} s after its FIN, and the broker was not killed"
                late = min(kill - at for kill in excuse)
                assert late < FLUSH_MS / 1000 + SLACK_SECONDS, f"{body} was done {late:.3f} s before the kill"
        return sum(len(times) - 1 for times in got.values())


def test_consumers_are_killed_and_come_back(tmp_path: Path) -> None:
    served = nsq_serving(tmp_path / "data")
    random = Random(1)
    with served.serving:
        life = Life(served, consumers=3)
        try:
            for _ in range(12):
                life.flow()
                time.sleep(random.uniform(0, 0.1))
                random.choice(life.consumers).again()
        finally:
            life.end()
        life.check()
        assert len(life.publisher.acknowledged) > 100
        served.serving.stop()


@pytest.mark.parametrize("durability", ["sync", "async"])
def test_the_broker_is_killed_again_and_again(tmp_path: Path, durability: str) -> None:
    kill_broker(tmp_path, durability, kills=5, seed=2)


def test_the_check_sees_a_loss(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="never came"):
        kill_broker(tmp_path, "memory", kills=1, seed=3)


def test_the_check_sees_what_is_done_come_again(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="before the kill"):
        kill_broker(tmp_path, "async", kills=1, seed=4, flush_ms=60_000, least_seconds=3.0)


@pytest.mark.long
@pytest.mark.timeout(1800 * LONGER)
@pytest.mark.parametrize("seed", range(3))
def test_the_broker_is_killed_many_times(tmp_path: Path, seed: int) -> None:
    kill_broker(tmp_path, "sync", kills=30 * LONGER, seed=seed)


def kill_broker(
    folder: Path, durability: str, kills: int, seed: int, flush_ms: int = FLUSH_MS, least_seconds: float = 0.2
) -> None:
    flags = ("--durability", durability, "--queue-flush-ms", str(flush_ms), "--checkpoint-ms", "700")
    served = nsq_serving(folder / "data", *flags)
    random = Random(seed)
    with served.serving:
        life = Life(served, consumers=2)
        try:
            for number in range(kills):
                life.flow()
                time.sleep(random.uniform(least_seconds, least_seconds + 0.6))
                # What waits at the time of the kill has to be there afterwards, and so has the pause.
                served.doors.ask(f"/channel/pause?topic={TOPIC}&channel={CHANNEL}")
                life.publish_more()
                life.kill_broker()
                if durability != "memory":
                    assert served.doors.channel(TOPIC, CHANNEL)["paused"] is True
                    served.doors.ask(f"/channel/unpause?topic={TOPIC}&channel={CHANNEL}")
                if number % 2:
                    random.choice(life.consumers).again()
        finally:
            life.end()
        life.check()
        served.serving.stop()


def test_real_consumers_are_killed_under_load(tmp_path: Path, client: Client) -> None:
    """At least once is all that can be seen of a client that does not fence."""
    served = nsq_serving(tmp_path / "data")
    random = Random(3)
    with served.serving:
        Raw(served.doors.nsq).subscribe(TOPIC, CHANNEL, 0)
        publisher = Publisher(served.doors.nsq)
        found: set[str] = set()
        work = {"nsqd": served.doors.nsq, "in_flight": 10}
        running = [client.consume(TOPIC, CHANNEL, **work) for _ in range(2)]
        try:
            for number in range(5):
                found.update(each.body for each in running[number % 2].take(3))
                time.sleep(random.uniform(0, 0.2))
                found.update(each.body for each in running[number % 2].drain())
                running[number % 2] = client.consume(TOPIC, CHANNEL, **work)
        finally:
            publisher.stop()
        try:
            served.doors.wait_until_settled(TOPIC, CHANNEL)
        finally:
            for each in running:
                found.update(message.body for message in each.drain())
        lost = publisher.acknowledged - found
        assert not lost, f"{len(lost)} of {len(publisher.acknowledged)} acknowledged messages never came"
        served.serving.stop()
