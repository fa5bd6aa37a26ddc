"""Applications that are set while they work: a broker and several instances as real processes, under load."""

from __future__ import annotations

import asyncio
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import urlopen

import pytest
from tests.serve_process import ServeProcess
from tests.waiting import SECONDS, until

from headrace.client import Client
from headrace.sdk.registry import LIVE, Instance, Registry, Setting
from headrace.sdk.retry_topic import WAITS

INSTANCES = 3
PARTITIONS = 6
NAME, TOPIC = "shop.live", "live-orders"


class Call(NamedTuple):
    """A call of a handler."""

    value: int
    began: float
    ended: float
    pid: int


class Place:
    """A broker with every door, the application's instances on it, and a desk from which they are set."""

    def __init__(self, serving: ServeProcess, client: Client, folder: Path) -> None:
        self.client = client
        self.registry = Registry(client)
        self.took: list[float] = []
        """Seconds from each change to the moment when all followed."""
        self._doors = serving.addresses
        self._trace = folder / "trace"
        self._said = folder / "instances.log"

    @property
    def url(self) -> str:
        return f"headrace://{self._doors['kafka']}?nsq={self._doors['nsq']}&http={self._doors['http']}"

    # --- the application ---

    @asynccontextmanager
    async def instances(self, scenario: str, count: int = INSTANCES) -> AsyncIterator[list[subprocess.Popen[bytes]]]:
        processes = [self._start(scenario) for _ in range(count)]
        try:
            await self.until(lambda: len(self.running()) == count)
            yield processes
        finally:
            for each in processes:
                each.send_signal(signal.SIGTERM)
            for each in processes:
                try:
                    await asyncio.to_thread(each.wait, SECONDS)
                except subprocess.TimeoutExpired:
                    each.kill()
                    each.wait()

    def _start(self, scenario: str) -> subprocess.Popen[bytes]:
        script = Path(__file__).with_name("live_app.py")
        command = [sys.executable, str(script), self.url, NAME, TOPIC, scenario, str(self._trace)]
        with self._said.open("a") as said:
            return subprocess.Popen(command, stderr=said, stdout=said)

    @asynccontextmanager
    async def load(self, rate: int) -> AsyncIterator[list[int]]:
        """Messages at a steady pace; the list has what was sent."""
        sent: list[int] = []
        stopping = asyncio.Event()

        async def send() -> None:
            async with self.client.producer() as producer:
                began = time.monotonic()
                while not stopping.is_set():
                    while len(sent) < (time.monotonic() - began) * rate:
                        # Keys, so that the partitions are used evenly.
                        await producer.send(TOPIC, b"%d" % len(sent), b"%d" % len(sent))
                        sent.append(len(sent))
                    await asyncio.sleep(0.01)

        task = asyncio.create_task(send())
        try:
            yield sent
        finally:
            stopping.set()
            await task

    def calls(self) -> list[Call]:
        # The last line may be there in part: a write across two pages of memory is seen page by page.
        lines = self._trace.read_text().rpartition("\n")[0].splitlines() if self._trace.exists() else []
        return [Call(int(a), float(b), float(c), int(d)) for a, b, c, d in map(str.split, lines)]

    async def until(self, true: Callable[[], bool], seconds: float = SECONDS) -> None:
        """Wait for something that other processes do."""

        def words() -> str:
            return f"{len(self.calls())} calls; {self._said.read_text()[-4_000:]}"

        await until(true, words, seconds=seconds, pause=0.02)

    # --- the desk ---

    async def follow(self) -> None:
        while True:
            await self.registry.next()

    def running(self) -> list[Instance]:
        return [
            each
            for each in self.registry.directory.instances.get(NAME, {}).values()
            if each.alive(round(time.time() * 1_000))
        ]

    async def set(self, subscription: str = "", **values: Any) -> None:
        """Set values, or (None) set them back, and wait until all instances follow."""
        began = time.monotonic()
        offset = await self.registry.write(
            {
                (LIVE, NAME, subscription, name): None if value is None else Setting(value)
                for name, value in values.items()
            }
        )
        await self.until(lambda: all(each.applied > offset for each in self.running()))
        self.took.append(time.monotonic() - began)

    async def joins(self) -> tuple[float, float]:
        """What a rebalance, or a consumer that connects anew, would add to."""
        return (
            await self._counted('headrace_requests_total{api="join_group",door="kafka"}'),
            await self._counted('headrace_connections_accepted_total{door="nsq"}'),
        )

    async def _counted(self, metric: str) -> float:
        def read() -> str:
            with urlopen(f"http://{self._doors['http']}/metrics", timeout=10) as answer:
                said: str = answer.read().decode()
                return said

        text = await asyncio.to_thread(read)
        name, labels = metric.rstrip("}").split("{")
        for line in re.findall(rf"^{name}{{(.*)}} (\S+)$", text, re.MULTILINE):
            if set(line[0].split(",")) == set(labels.split(",")):
                return float(line[1])
        return 0.0

    async def shared_out(self, scenario: str) -> bool:
        """Whether all partitions are divided among all instances, and no rebalance is left to come."""
        wanted = {NAME: PARTITIONS, **({f"{NAME}.retry": len(WAITS)} if scenario == "stream" else {})}
        for name, partitions in wanted.items():
            group = await self.client.admin.describe_group(name)
            shares = [len(each.partitions) for each in group.members]
            if group.state != "Stable" or sum(shares) != partitions or len(list(filter(None, shares))) != INSTANCES:
                return False
        return True


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    data = tmp_path_factory.mktemp("live") / "data"
    with ServeProcess(data, "--nsq", "127.0.0.1:0", "--http", "127.0.0.1:0") as serving:
        yield serving


@pytest.fixture
async def place(serving: ServeProcess, tmp_path: Path) -> AsyncIterator[Place]:
    async with Client(serving.kafka) as client:
        place = Place(serving, client, tmp_path)
        await client.admin.create_topic(TOPIC, PARTITIONS)
        await place.registry.open()
        following = asyncio.create_task(place.follow())
        yield place
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await place.registry.write(dict.fromkeys(place.registry.directory.keys(NAME)))
        await place.registry.close()
        await client.admin.delete_topic(TOPIC)


ON_KAFKA = ("stream", "exactly-once")
MORE = [pytest.param(each, marks=pytest.mark.long) for each in ("ordered", "burst", "exactly-once")]


@pytest.mark.parametrize("scenario", ["task", "stream", *MORE])
async def test_instances_follow_under_load_without_loss_and_without_a_rebalance(place: Place, scenario: str) -> None:
    async with place.instances(scenario):
        if scenario in ON_KAFKA:
            async with asyncio.timeout(SECONDS):
                while not await place.shared_out(scenario):
                    await asyncio.sleep(0.05)
        before = await place.joins()
        assert before[scenario not in ON_KAFKA] >= INSTANCES
        async with place.load(500) as sent:
            await place.until(lambda: len(place.calls()) > 100)
            await place.set(workers=16)
            # Less than what comes, so that workers wait for the rate when the pause comes.
            await place.set(rate=100, credit=200)
            await place.set(f"{TOPIC}/{NAME}", workers=3, attempts=7)
            await place.set(workers=None)
            await place.set(pause=True)
            paused = time.time()
            behind = len(sent)
            await place.until(lambda: len(sent) > behind + 300)
            assert [call for call in place.calls() if call.began > paused] == []
            await place.set(pause=None, rate=None)
            await place.until(lambda: any(call.began > paused for call in place.calls()))
        await place.until(lambda: len(place.calls()) >= len(sent))
        assert len(place.running()) == INSTANCES
        assert await place.joins() == before
    calls = place.calls()
    assert len({call.pid for call in calls}) == INSTANCES
    # Nobody left or came, so not even what was in flight is delivered twice.
    assert sorted(call.value for call in calls) == sent
    assert place.running() == []
    # An instance that is not woken follows when its poll ends, after twenty seconds.
    assert statistics.median(place.took) < 5.0


async def test_an_instance_that_was_killed_is_missed_and_swept_out_by_the_next(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with place.instances("task", 2) as (one, two):
        async with place.load(200) as sent:
            await place.until(lambda: len(place.calls()) > 50)
            one.kill()
            # Nobody waits for it longer than for its next word.
            monkeypatch.setattr("headrace.sdk.registry.EXPIRY_SECONDS", 0.0)
            await place.set(workers=4)
            monkeypatch.undo()
            await place.until(lambda: any(each.pid == two.pid and each.applied for each in place.running()))
        await place.until(lambda: {call.value for call in place.calls()} == set(sent))
    # What was in the hands of the one that was killed came again, and nothing else.
    calls = place.calls()
    twice = [
        call
        for call in calls
        if call.pid == two.pid and call.value in {each.value for each in calls if each.pid != two.pid}
    ]
    assert len(twice) <= 2
    assert [each.pid for each in place.registry.directory.instances[NAME].values()] == [one.pid]
