"""The longest steps that requests for figures, lists and pages cause on a broker's loop.

    python -m bench.console.steps                  # 10,000 topics, 2,000 queues, 500 groups

One process: a server with its HTTP door, on asyncio's own loop, each of whose callbacks is timed by the CPU time of its
thread, so that whatever else the machine does is left out (but not that it shares the caches). Each request is made
several times, and the round counts whose longest step is shortest: what the code must take. A step above a millisecond,
which keeps all other clients waiting, has a star.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import http.client
import tempfile
import time
from asyncio.events import Handle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headrace.addresses import parse_address
from headrace.broker.broker import Broker
from headrace.broker.groups import Commit
from headrace.config import Config
from headrace.format import records
from headrace.server import Server

LIMIT_MS = 1.0
# The disk is not what is measured, and 10,000 topics take a while to be made on one.
MEMORY = Path("/dev/shm")
REQUESTS = (
    "/v1/figures",
    "/v1/figures?limit=2000",
    "/v1/overview",
    "/v1/topics",
    "/v1/topics?limit=1000",
    "/v1/topics?search=99&sort=bytes&order=desc",
    "/v1/topics?sort=messages_in_rate&order=desc&offset=9000",
    "/v1/topics?search=*-0*7",
    "/v1/topics?limit=1000&sort=bytes&offset=9000",
    "/v1/topics/topic-00007",
    "/v1/topics/wide",
    "/v1/topics/topic-00007/settings",
    "/v1/topic-settings",
    "/v1/groups?limit=1000&sort=lag&order=desc",
    "/v1/groups?search=7",
    "/v1/groups/group-007",
    "/v1/queues",
    "/v1/queues?limit=50&sort=depth&order=desc",
    "/v1/topics/topic-00007/queues",
    "/v1/topics/topic-00007/queues/queue",
    "/v1/dead-letters",
    "/v1/timers",
    "/v1/half",
    "/v1/transactions",
    "/v1/clients",
    "/v1/apps",
    "/v1/registrations",
    "/v1/registrations/unregistered",
    "/v1/alerts/rules",
    "/v1/alerts/silences",
    "/v1/alerts/channels",
    "/v1/users",
    "/v1/tokens",
    "/v1/acls",
    "/v1/roles",
    "/v1/quotas",
    "/v1/audit",
    "/v1/cluster",
    "/v1/whoami",
    "/openapi.json",
    "/metrics",
    "/metrics?partitions=1",
)


class Steps:
    """Times each callback of asyncio's loop, while it is on."""

    def __init__(self) -> None:
        self.longest = 0
        self.name = ""
        self.total = 0
        self.count = 0
        self.collecting = 0
        """The longest step in which the garbage collector ran."""
        self._collected = False

    def clear(self) -> None:
        self.longest = self.total = self.count = self.collecting = 0
        self.name = ""

    @contextmanager
    def on(self) -> Iterator[Steps]:
        run: Callable[[Handle], None] = Handle._run  # type: ignore[attr-defined]
        clock = time.thread_time_ns

        def timed(handle: Handle) -> None:
            began = clock()
            run(handle)
            self._note(handle, clock() - began)

        gc.callbacks.append(self._on_collection)
        Handle._run = timed  # type: ignore[attr-defined]
        try:
            yield self
        finally:
            Handle._run = run  # type: ignore[attr-defined]
            gc.callbacks.remove(self._on_collection)

    def _on_collection(self, phase: str, info: dict[str, int]) -> None:
        self._collected = True

    def _note(self, handle: Handle, took: int) -> None:
        self.total += took
        self.count += 1
        if self._collected:
            self._collected = False
            self.collecting = max(self.collecting, took)
        elif took > self.longest:
            self.longest, self.name = took, _name(handle)


def _name(handle: Handle) -> str:
    callback: Any = handle._callback  # type: ignore[attr-defined]
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return str(getattr(owner.get_coro(), "__qualname__", owner))
    return str(getattr(callback, "__qualname__", callback))


async def fill(broker: Broker, topics: int, queues: int, groups: int) -> None:
    """Topics with a record each, queues of the first of them, groups that read four topics each, and a wide topic."""
    for number in range(topics):
        topic = await broker.topics.create(f"topic-{number:05}", 1)
        now = broker.runtime.clock.now_ms()
        topic.partitions[0].append(records.build([(now, None, b"a message", [])]))
        if number < queues:
            await broker.queues.ensure(topic, "queue")
    await broker.topics.create("wide", 1_000)
    for number in range(groups):
        places = [broker.topics.existing(f"topic-{(number * 4 + each) % topics:05}") for each in range(4)]
        await broker.groups.commit(f"group-{number:03}", [Commit(each.name, each.id, 0, 0) for each in places])


def ask(address: str, path: str) -> tuple[int, int]:
    """Status and length of the answer."""
    place = parse_address(address)
    assert place is not None
    connection = http.client.HTTPConnection(*place, timeout=60)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, len(answer.read())
    finally:
        connection.close()


async def measure(folder: Path, topics: int, queues: int, groups: int, rounds: int) -> None:
    config = Config(
        data=str(folder), kafka="off", http="127.0.0.1:0", nsq="off", nsq_http="off", lookup="off", lookup_http="off",
        rocketmq="off", rocketmq_namesrv="off", rocketmq_grpc="off", durability="async", figures_interval_ms=1,
    )  # fmt: skip
    server = Server(config)
    await server.start()
    try:
        await fill(server.broker, topics, queues, groups)
        gc.collect()
        gc.freeze()
        with Steps().on() as steps:
            for path in REQUESTS:
                best: tuple[int, str] | None = None
                collecting = total = 0
                for _ in range(rounds):
                    steps.clear()
                    status, size = await asyncio.to_thread(ask, server.addresses["http"], path)
                    if best is None or steps.longest < best[0]:
                        best = steps.longest, steps.name
                        total = steps.total
                    collecting = max(collecting, steps.collecting)
                assert best is not None
                mark = " *" if best[0] > LIMIT_MS * 1e6 else ""
                found = f"{path:<60} {status} {size:>9,} B   {best[0] / 1e6:6.2f} ms of {total / 1e6:6.1f}: {best[1]}"
                found += f"; with a garbage collection {collecting / 1e6:.2f}" if collecting else ""
                print(f"{found}{mark}", flush=True)
    finally:
        await server.stop()


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--topics", type=int, default=10_000)
    asked.add_argument("--queues", type=int, default=2_000)
    asked.add_argument("--groups", type=int, default=500)
    asked.add_argument("--rounds", type=int, default=5)
    given = asked.parse_args()
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        asyncio.run(measure(Path(folder), given.topics, given.queues, given.groups, given.rounds))


if __name__ == "__main__":
    main()
