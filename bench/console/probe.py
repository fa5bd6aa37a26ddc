"""Load on a broker, and a probe beside it: how long a message takes from its producer to its consumer.

    python -m bench.console.probe load 127.0.0.1:9092      # until its input ends
    python -m bench.console.probe probe 127.0.0.1:9092 10  # for so many seconds; prints milliseconds as JSON

The load is a producer that sends as fast as the broker takes it, and a consumer that follows, each with librdkafka's
defaults. The probe sends a message each 5 ms to a topic of its own, and waits for none of them.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

from confluent_kafka import Consumer, Producer

LOAD, PROBE = "load", "probe"
EVERY = 0.005
WARM = 100
VALUE = bytes(100)


def consumer_of(kafka: str, topic: str, group: str) -> Consumer:
    consumer = Consumer(
        {"bootstrap.servers": kafka, "group.id": group, "auto.offset.reset": "latest", "fetch.wait.max.ms": 100}
    )
    assigned = threading.Event()
    consumer.subscribe([topic], on_assign=lambda *_: assigned.set())
    until = time.monotonic() + 30
    while not assigned.is_set() and time.monotonic() < until:
        consumer.poll(0.1)
    return consumer


def load(kafka: str) -> None:
    consumer = consumer_of(kafka, LOAD, LOAD)
    stopping = threading.Event()
    read = 0

    def follow() -> None:
        nonlocal read
        while not stopping.is_set():
            read += len(consumer.consume(10_000, 0.2))

    following = threading.Thread(target=follow)
    following.start()
    producer = Producer({"bootstrap.servers": kafka, "linger.ms": 5})

    def produce() -> None:
        while not stopping.is_set():
            try:
                producer.produce(LOAD, VALUE)
            except BufferError:
                producer.poll(0.05)

    producing = threading.Thread(target=produce)
    producing.start()
    print("ready", flush=True)
    for line in sys.stdin:
        if line.strip() == "count":
            print(read, flush=True)
    stopping.set()
    producing.join()
    following.join()
    producer.purge()
    consumer.close()


def probe(kafka: str, seconds: float) -> None:
    consumer = consumer_of(kafka, PROBE, f"{PROBE}-{time.time_ns()}")
    producer = Producer({"bootstrap.servers": kafka, "linger.ms": 0, "acks": "all"})
    sending = threading.Event()

    def send() -> None:
        due = time.monotonic()
        while not sending.is_set():
            producer.produce(PROBE, time.monotonic_ns().to_bytes(8))
            producer.poll(0)
            due = max(due + EVERY, time.monotonic())
            time.sleep(max(due - time.monotonic(), 0))

    thread = threading.Thread(target=send)
    thread.start()
    found: list[float] = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for message in consumer.consume(100, 0.1):
            sent = message.value()
            if message.error() is None and isinstance(sent, bytes):
                found.append((time.monotonic_ns() - int.from_bytes(sent)) / 1e6)
    sending.set()
    thread.join()
    producer.purge()
    consumer.close()
    print(json.dumps(found[WARM:]))


if __name__ == "__main__":
    # What loads a machine is not what is measured.
    Path("/proc/self/comm").write_text("load")
    if sys.argv[1] == LOAD:
        load(sys.argv[2])
    else:
        probe(sys.argv[2], float(sys.argv[3]))
