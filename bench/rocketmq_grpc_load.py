"""A load generator of RocketMQ's gRPC protocol: `python -m bench.rocketmq_grpc_load`, driven by `bench.measure`.

Each thread has a client of its own, which asks again when it was answered. The generator takes more CPU time than what
it measures, so its rates say little; the server's CPU time per message is what counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from google.protobuf.duration_pb2 import Duration
from tests.doors.rocketmq.grpc.client import RawGrpc, message

from bench.generator import generate
from headrace.doors.rocketmq.grpc.protocol import Code, definition

GROUP = "bench"
RECEIVED = 32
# Without these RocketMQ's proxy refuses a client.
CLIENT = (("x-mq-language", "PYTHON"), ("x-mq-client-version", "5.0.0"), ("x-mq-protocol", "v2"))


def check(status: Any) -> None:
    if status.code != Code.OK:
        raise RuntimeError(f"refused: {status}")


def connect(spec: dict[str, Any]) -> RawGrpc:
    client = RawGrpc(f"127.0.0.1:{spec['grpc_port']}")
    client.metadata += CLIENT
    return client


def send(spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """`connections` clients that send until `messages` are there."""
    topic, body, count = spec["topics"][0], b"x" * spec["size"], spec["messages"] // spec["connections"]
    clients = [connect(spec) for _ in range(spec["connections"])]
    streams = [client.be_producer(topic) for client in clients]
    check(clients[0].send(topic, body).status)

    def work(client: RawGrpc) -> None:
        for _ in range(count):
            check(client.send(topic, message(topic, body)).status)

    yield {}
    with ThreadPoolExecutor(len(clients)) as threads:
        list(threads.map(work, clients))
    yield {"messages": count * len(clients), "streams": len(streams)}


def receive(spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """One client that receives and acknowledges until it had `messages`."""
    topic = definition.Resource(name=spec["topics"][0])
    group = definition.Resource(name=GROUP)
    client = connect(spec)
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


if __name__ == "__main__":
    generate({"grpc send": send, "grpc receive": receive})
