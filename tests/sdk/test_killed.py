"""Instances of an application, and the broker under them, are killed while messages flow: nothing that was acknowledged
to its publisher is lost, what comes twice comes so because something was killed, and keys stay in order."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count, cycle
from pathlib import Path

import pytest
from bench.peers import free_port
from tests.longer import LONGER
from tests.sdk.test_exactly_once import Place, copier, make, seen
from tests.serve_process import ServeProcess
from tests.waiting import SECONDS, until

from headrace.client import Client
from headrace.sdk import App

KILLED_APP = Path(__file__).with_name("killed_app.py")
SCENARIOS = ("task", "ordered", "burst", "stream")
PARTITIONS = 4
KEYS = 20
# Of each key, before there are instances.
BACKLOG = 60

Event = tuple[int, int]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[ServeProcess]:
    """It keeps its ports when it is killed and started again."""
    doors = ["--nsq", f"127.0.0.1:{free_port()}", "--http", f"127.0.0.1:{free_port()}"]
    with ServeProcess(tmp_path / "data", *doors) as serving:
        yield serving


def url_of(broker: ServeProcess, wire: str) -> str:
    if wire == "nsq":
        return f"nsq://{broker.addresses['nsq']}"
    if wire == "kafka":
        return f"kafka://{broker.kafka}"
    return f"headrace://{broker.kafka}?nsq={broker.addresses['nsq']}&http={broker.addresses['http']}"


class Load:
    """Messages that are published, and what instances did with them."""

    def __init__(self, url: str, group: str, file: Path, scenarios: tuple[str, ...]) -> None:
        self.url = url
        self.group = group
        self.file = file
        self.scenarios = scenarios
        self.killed = 0
        self.copies = 0
        self.published = 0
        self.enough = True
        self.acknowledged: dict[str, list[Event]] = {each: [] for each in scenarios}
        self.file.touch()

    async def publish(self, rounds: int, pause: float = 0.02) -> None:
        """A message for each key, so many times, and then until it is `enough`."""
        async with App(f"{self.group}.source", self.url, register=False) as source:
            for number in count(self.published):
                if number >= self.published + rounds and self.enough:
                    self.published = number
                    return
                sent = []
                for scenario in self.scenarios:
                    for key in range(KEYS):
                        payload = {"key": key, "number": number}
                        done = await source.send(f"{self.group}-{scenario}", payload, key=str(key))
                        sent.append((scenario, (key, number), done))
                for scenario, event, done in sent:
                    await done
                    self.acknowledged[scenario].append(event)
                await asyncio.sleep(pause)

    @asynccontextmanager
    async def instance(self) -> AsyncIterator[None]:
        """One as a process of its own; it ends by being killed."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(KILLED_APP), self.url, self.group, str(self.file), *self.scenarios,
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        try:
            # Before it, the log says that it has started.
            await asyncio.wait_for(process.stdout.readuntil(b"ready\n"), SECONDS)
            yield
        finally:
            assert process.returncode is None, "an instance ended by itself"
            process.kill()
            await process.wait()

    def handled(self) -> dict[str, list[Event]]:
        """In the order in which it happened."""
        found: dict[str, list[Event]] = {each: [] for each in self.scenarios}
        # The last line may be there in part: a write across two pages of memory is seen page by page.
        whole, _, _ = self.file.read_text().rpartition("\n")
        for line in whole.splitlines():
            scenario, key, number = line.split()
            found[scenario].append((int(key), int(number)))
        return found

    async def further(self, rounds: int, seconds: float = 60.0) -> None:
        """Wait until as many more were handled as are published in so many rounds, whatever their scenario."""
        before = self.file.stat().st_size
        more = rounds * KEYS * sum(len(f"{each} 10 100\n") for each in self.scenarios)
        await until(lambda: self.file.stat().st_size >= before + more, seconds=seconds)

    async def check(self, seconds: float = 240.0) -> None:
        """Wait until everything acknowledged was handled, and look at how. A Kafka group takes 10 s to miss a member
        that was killed, and longer if that one was about to share out its partitions."""
        # Seldom, for it reads all that was ever handled.
        await until(lambda: not any(self.lost().values()), self.lost, seconds=seconds, pause=0.3)
        handled = self.handled()
        # A kill repeats what was in flight; a copy that was published after the n-th kill is repeated by later ones.
        most = 1 + self.killed + sum(1 + self.killed - number for number in range(1, self.copies + 1))
        for scenario, events in handled.items():
            assert max(Counter(events).values()) <= most, f"{scenario}: more often than something was killed"
        first: dict[int, list[int]] = {}
        for key, number in dict.fromkeys(handled.get("ordered", ())):
            first.setdefault(key, []).append(number)
        for key, numbers in first.items():
            assert numbers == sorted(numbers), f"the events of {key} were overtaken"

    def lost(self) -> dict[str, int]:
        handled = self.handled()
        return {each: len(set(self.acknowledged[each]) - set(handled[each])) for each in self.scenarios}


async def loaded(broker: ServeProcess, wire: str, scenarios: tuple[str, ...], file: Path) -> Load:
    load = Load(url_of(broker, wire), f"killed-{wire}", file, scenarios)
    async with Client(broker.kafka) as client:
        for scenario in scenarios:
            await client.admin.create_topic(f"{load.group}-{scenario}", PARTITIONS)
    return load


async def kill_instances(load: Load, rounds: int, kills: int) -> None:
    """Two instances, of which one is killed and replaced, again and again, while messages flow."""
    async with AsyncExitStack() as life, asyncio.TaskGroup() as beside:
        running = [await life.enter_async_context(AsyncExitStack()) for _ in range(2)]
        # What waits keeps the instances busy when they are killed.
        await load.publish(BACKLOG, 0)
        await asyncio.gather(*(one.enter_async_context(load.instance()) for one in running))
        load.enough = False
        publishing = beside.create_task(load.publish(rounds))
        for _, one in zip(range(kills), cycle(running), strict=False):
            await load.further(rounds // kills // 2)
            await one.aclose()
            load.killed += 1
            await one.enter_async_context(load.instance())
        load.enough = True
        await publishing
        await load.check()


async def kill_broker(broker: ServeProcess, load: Load, rounds: int, kills: int) -> None:
    """Two instances and a publisher go on when the broker under them is killed and started again."""
    await load.publish(BACKLOG, 0)
    async with load.instance(), load.instance(), asyncio.TaskGroup() as beside:
        load.enough = False
        publishing = beside.create_task(load.publish(rounds))
        for _ in range(kills):
            await load.further(rounds // kills // 2)
            await asyncio.to_thread(broker.kill)
            load.killed += 1
            # A publisher sends again what got no answer, and NSQ's wire has no numbers by which that would be known.
            load.copies += load.url.startswith("nsq:")
            await asyncio.to_thread(broker.start)
        load.enough = True
        await publishing
        await load.check()


async def kill_under_transactions(broker: ServeProcess, messages: int, kills: int) -> None:
    """What two instances copy is there once, though the broker is killed in the middle of their transactions."""
    place = Place(url_of(broker, "kafka"), broker.kafka)
    await make(place, "once-in", "once-out")
    sent = [b"m%d" % each for each in range(messages)]
    async with copier(place, "once", "once-in", "once-out"), copier(place, "once", "once-in", "once-out"):
        async with App("once.source", place.url, register=False) as source:
            for first in range(0, messages, messages // (kills + 1)):
                part = sent[first : first + messages // (kills + 1)]
                await source.publish_batch("once-in", part, keys=part)
                await seen(place, "once-out", first + 1)
                if first:
                    await asyncio.to_thread(broker.kill)
                    await asyncio.to_thread(broker.start)
        found = await seen(place, "once-out", messages)
    assert Counter(found) == Counter(raw.upper() for raw in sent)


QUICK = [
    ("headrace", ("task", "ordered", "burst")),
    ("kafka", ("task", "ordered", "stream")),
    ("nsq", ("task", "burst")),
]


@pytest.mark.parametrize(("wire", "scenarios"), QUICK)
async def test_instances_killed_under_load(
    broker: ServeProcess, wire: str, scenarios: tuple[str, ...], tmp_path: Path
) -> None:
    await kill_instances(await loaded(broker, wire, scenarios, tmp_path / "handled"), 40, 1)


@pytest.mark.parametrize(("wire", "scenarios"), QUICK)
async def test_a_broker_killed_under_load(
    broker: ServeProcess, wire: str, scenarios: tuple[str, ...], tmp_path: Path
) -> None:
    await kill_broker(broker, await loaded(broker, wire, scenarios, tmp_path / "handled"), 40, 1)


async def test_a_broker_killed_under_transactions(broker: ServeProcess) -> None:
    await kill_under_transactions(broker, 1_000, 1)


@pytest.mark.long
@pytest.mark.timeout(900 * LONGER)
async def test_a_broker_killed_under_transactions_for_long(broker: ServeProcess) -> None:
    await kill_under_transactions(broker, 20_000 * LONGER, 10 * LONGER)


@pytest.mark.long
@pytest.mark.timeout(900 * LONGER)
@pytest.mark.parametrize("wire", ["headrace", "kafka"])
async def test_instances_killed_for_long(broker: ServeProcess, wire: str, tmp_path: Path) -> None:
    await kill_instances(await loaded(broker, wire, SCENARIOS, tmp_path / "handled"), 600 * LONGER, 10 * LONGER)


@pytest.mark.long
@pytest.mark.timeout(900 * LONGER)
@pytest.mark.parametrize("wire", ["headrace", "kafka"])
async def test_a_broker_killed_for_long(broker: ServeProcess, wire: str, tmp_path: Path) -> None:
    await kill_broker(broker, await loaded(broker, wire, SCENARIOS, tmp_path / "handled"), 600 * LONGER, 10 * LONGER)
