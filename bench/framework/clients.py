"""One client at one kind of work, in a process of its own: `python -m bench.framework.clients CLIENT WORK ...`.

What counts is the CPU time of this process, with all its threads: for publishing from the first message to the last
acknowledgement, for consuming from the first message that the handler got to the last one. Each client is used as its
documentation shows, with its defaults, except that FastStream, which logs every message by default, does not.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

PAYLOAD = b"x" * 100
BATCH = 500
# What a publisher does before the clock starts: connections, metadata, and code that runs for the first time.
WARM_UP = 200


class Clock:
    """CPU and wall time between two points."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        self._cpu, self._wall = time.process_time(), time.perf_counter()

    def stop(self) -> dict[str, float]:
        return {"cpu": time.process_time() - self._cpu, "seconds": time.perf_counter() - self._wall}


class Counter:
    """A handler's own part: count, and say when all are there."""

    def __init__(self, count: int) -> None:
        self.result: dict[str, float] = {}
        self.over = asyncio.Event()
        self._left = count
        self._clock: Clock | None = None

    def came(self, count: int) -> None:
        if self._clock is None:
            self._clock = Clock()
        self._left -= count
        if self._left <= 0 and not self.result:
            self.result = self._clock.stop()
            self.over.set()


def chunks(count: int) -> Iterator[int]:
    for first in range(0, count, BATCH):
        yield min(BATCH, count - first)


# --- the framework ----------------------------------------------------------------------------------------------------


def _app(address: str) -> Any:
    from headrace.sdk import App

    return App("bench", f"kafka://{address}", log_level="warning")


async def sdk_publish_one(address: str, topic: str, count: int) -> dict[str, float]:
    async with _app(address) as app:
        for _ in range(WARM_UP):
            await app.publish(topic, PAYLOAD)
        clock = Clock()
        for _ in range(count):
            await app.publish(topic, PAYLOAD)
        return clock.stop()


async def sdk_publish_bulk(address: str, topic: str, count: int) -> dict[str, float]:
    async with _app(address) as app:
        for _ in range(WARM_UP):
            await app.send(topic, PAYLOAD)
        await app.flush()
        clock = Clock()
        for size in chunks(count):
            await app.publish_batch(topic, [PAYLOAD] * size)
        return clock.stop()


async def sdk_publish_line(address: str, topic: str, count: int) -> dict[str, float]:
    async with _app(address) as app:
        for _ in range(WARM_UP):
            await app.send(topic, PAYLOAD)
        await app.flush()
        clock = Clock()
        for _ in range(count):
            await app.send(topic, PAYLOAD)
        await app.flush()
        return clock.stop()


async def sdk_consume_one(address: str, topic: str, count: int) -> dict[str, float]:
    app, counting = _app(address), Counter(count)

    @app.subscribe(topic, scenario="stream")  # type: ignore[untyped-decorator]
    async def handle(raw: bytes) -> None:
        counting.came(1)

    async with app:
        await counting.over.wait()
    return counting.result


async def sdk_consume_batch(address: str, topic: str, count: int) -> dict[str, float]:
    app, counting = _app(address), Counter(count)

    @app.subscribe(topic, scenario="stream", batch=BATCH)  # type: ignore[untyped-decorator]
    async def handle(raws: list[bytes]) -> None:
        counting.came(len(raws))

    async with app:
        await counting.over.wait()
    return counting.result


# --- confluent-kafka as it is -----------------------------------------------------------------------------------------


async def raw_publish_one(address: str, topic: str, count: int) -> dict[str, float]:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": address})
    for _ in range(WARM_UP):
        producer.produce(topic, PAYLOAD)
    producer.flush()
    clock = Clock()
    for _ in range(count):
        producer.produce(topic, PAYLOAD)
        producer.flush()
    return clock.stop()


async def raw_publish_bulk(address: str, topic: str, count: int) -> dict[str, float]:
    from confluent_kafka import KafkaError, Message, Producer

    failed = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failed.append(error)

    producer = Producer({"bootstrap.servers": address})
    for _ in range(WARM_UP):
        producer.produce(topic, PAYLOAD)
    producer.flush()
    clock = Clock()
    for size in chunks(count):
        for _ in range(size):
            while True:
                try:
                    producer.produce(topic, PAYLOAD, on_delivery=delivered)
                    break
                except BufferError:
                    producer.poll(0.1)
        producer.poll(0)
    producer.flush()
    assert not failed, failed[0]
    return clock.stop()


async def raw_publish_line(address: str, topic: str, count: int) -> dict[str, float]:
    return await raw_publish_bulk(address, topic, count)


def _consumer(address: str, topic: str) -> Any:
    from confluent_kafka import Consumer

    consumer = Consumer({"bootstrap.servers": address, "group.id": "raw-bench", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    return consumer


async def raw_consume_one(address: str, topic: str, count: int) -> dict[str, float]:
    consumer, counting = _consumer(address, topic), Counter(count)
    while not counting.result:
        message = consumer.poll(0.1)
        if message is not None and message.error() is None and message.value() is not None:
            counting.came(1)
    consumer.close()
    return counting.result


async def raw_consume_batch(address: str, topic: str, count: int) -> dict[str, float]:
    consumer, counting = _consumer(address, topic), Counter(count)
    while not counting.result:
        found = consumer.consume(BATCH, 0.1)
        values = [each.value() for each in found if each.error() is None]
        if values:
            counting.came(len(values))
    consumer.close()
    return counting.result


# --- FastStream, over confluent-kafka and over aiokafka ---------------------------------------------------------------


def _broker(kind: str, address: str) -> Any:
    # By default a batch over aiokafka has room for a hundred such messages.
    room = {"max_batch_size": 131_072} if kind == "kafka" else {}
    return importlib.import_module(f"faststream.{kind}").KafkaBroker(address, logger=None, **room)


async def faststream_publish_one(address: str, topic: str, count: int, kind: str) -> dict[str, float]:
    async with _broker(kind, address) as broker:
        for _ in range(WARM_UP):
            await broker.publish(PAYLOAD, topic)
        clock = Clock()
        for _ in range(count):
            await broker.publish(PAYLOAD, topic)
        return clock.stop()


async def faststream_publish_bulk(address: str, topic: str, count: int, kind: str) -> dict[str, float]:
    async with _broker(kind, address) as broker:
        await broker.publish_batch(*[PAYLOAD] * WARM_UP, topic=topic)
        clock = Clock()
        for size in chunks(count):
            await broker.publish_batch(*[PAYLOAD] * size, topic=topic)
        return clock.stop()


async def faststream_publish_line(address: str, topic: str, count: int, kind: str) -> dict[str, float]:
    async with _broker(kind, address) as broker:
        waiting = [await broker.publish(PAYLOAD, topic, no_confirm=True) for _ in range(WARM_UP)]
        await asyncio.gather(*waiting)
        clock = Clock()
        waiting = [await broker.publish(PAYLOAD, topic, no_confirm=True) for _ in range(count)]
        await asyncio.gather(*waiting)
        return clock.stop()


async def faststream_consume_one(address: str, topic: str, count: int, kind: str) -> dict[str, float]:
    broker, counting = _broker(kind, address), Counter(count)

    @broker.subscriber(topic, group_id=f"{kind}-bench", auto_offset_reset="earliest")  # type: ignore[untyped-decorator]
    async def handle(raw: bytes) -> None:
        counting.came(1)

    async with broker:
        await broker.start()
        await counting.over.wait()
    return counting.result


async def faststream_consume_batch(address: str, topic: str, count: int, kind: str) -> dict[str, float]:
    broker, counting = _broker(kind, address), Counter(count)
    subscriber = broker.subscriber(
        topic, group_id=f"{kind}-bench", auto_offset_reset="earliest", batch=True, max_records=BATCH
    )

    @subscriber  # type: ignore[untyped-decorator]
    async def handle(raws: list[bytes]) -> None:
        counting.came(len(raws))

    async with broker:
        await broker.start()
        await counting.over.wait()
    return counting.result


def work(client: str, kind: str) -> Callable[[str, str, int], Any]:
    """The function of a client for a kind of work."""
    family, _, inner = client.partition(":")
    found = globals()[f"{family}_{kind}"]
    return (lambda address, topic, count: found(address, topic, count, inner)) if inner else found


def main(client: str, kind: str, address: str, topic: str, count: str) -> None:
    print(json.dumps(asyncio.run(work(client, kind)(address, topic, int(count)))))


if __name__ == "__main__":
    main(*sys.argv[1:])
