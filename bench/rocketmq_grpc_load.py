"""A load generator of RocketMQ's gRPC protocol: `python -m bench.rocketmq_grpc_load`, driven by `bench.measure`.

Each thread has a client of its own, which asks again when it was answered. The generator takes more CPU time than what
it measures, so its rates say little; the server's CPU time per message is what counts.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from google.protobuf.duration_pb2 import Duration
from tests.doors.rocketmq.grpc.client import RawGrpc, message

from headrace.doors.rocketmq.grpc.protocol import Code, definition

GROUP = "bench"
RECEIVED = 32
# Without these RocketMQ's proxy refuses a client.
CLIENT = (("x-mq-language", "PYTHON"), ("x-mq-client-version", "5.0.0"), ("x-mq-protocol", "v2"))


def check(status: Any) -> None:
    if status.code != Code.OK:
        raise RuntimeError(f"refused: {status}")


def connect(address: str) -> RawGrpc:
    client = RawGrpc(address)
    client.metadata += CLIENT
    return client


def send(address: str, spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """`connections` clients that send until `messages` are there."""
    topic, body, count = spec["topics"][0], b"x" * spec["size"], spec["messages"] // spec["connections"]
    clients = [connect(address) for _ in range(spec["connections"])]
    streams = [client.be_producer(topic) for client in clients]
    check(clients[0].send(topic, body).status)

    def work(client: RawGrpc) -> None:
        for _ in range(count):
            check(client.send(topic, message(topic, body)).status)

    yield {}
    with ThreadPoolExecutor(len(clients)) as threads:
        list(threads.map(work, clients))
    yield {"messages": count * len(clients), "streams": len(streams)}


def receive(address: str, spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """One client that receives and acknowledges until it had `messages`."""
    topic = definition.Resource(name=spec["topics"][0])
    group = definition.Resource(name=GROUP)
    client = connect(address)
    stream = client.be_consumer(GROUP, topic.name)
    asked = {
        "group": group,
        "message_queue": definition.MessageQueue(topic=topic, id=-1),
        "filter_expression": definition.FilterExpression(type=definition.TAG, expression="*"),
        "invisible_duration": Duration(seconds=30),
        "long_polling_timeout": Duration(seconds=5),
        "batch_size": RECEIVED,
    }

    def some() -> int:
        answers = client.stream("ReceiveMessage", **asked)
        system = [each.message.system_properties for each in answers if each.WhichOneof("content") == "message"]
        entries = [{"message_id": each.message_id, "receipt_handle": each.receipt_handle} for each in system]
        if entries:
            check(client.ask("AckMessage", group=group, topic=topic, entries=entries).status)
        return len(entries)

    taken = some()
    yield {}
    before = taken
    while taken < spec["messages"]:
        taken += some()
    yield {"messages": taken - before, "stream": stream is not None}


def main() -> None:
    spec = json.loads(sys.stdin.readline())
    run = {"grpc send": send, "grpc receive": receive}[spec["kind"]](f"127.0.0.1:{spec['grpc_port']}", spec)
    next(run)
    print("ready", flush=True)
    sys.stdin.readline()
    begin, cpu = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF)
    result = next(run)
    after = resource.getrusage(resource.RUSAGE_SELF)
    used = after.ru_utime + after.ru_stime - cpu.ru_utime - cpu.ru_stime
    print(json.dumps({**result, "seconds": time.monotonic() - begin, "generator_cpu": used}), flush=True)


if __name__ == "__main__":
    main()
