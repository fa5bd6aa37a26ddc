"""Writes a data directory with something of everything that the broker keeps, and says what must be found in it.

    python tests/olddata/write.py KAFKA NSQ HTTP > expected.json

Run it against a broker of the version whose directory is to be kept, then kill or stop that broker and pack its data
directory. It speaks to the broker as clients do, so that one program serves all versions.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
import time
import urllib.request
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

DAY_MS = 24 * 3600 * 1000


class Http:
    """The HTTP door."""

    def __init__(self, address: str) -> None:
        self._address = address

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        request = urllib.request.Request(f"http://{self._address}{path}", method=method)
        request.add_header("content-type", "application/json")
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(request, data, timeout=30) as reply:
            return json.loads(reply.read() or b"null")


def settle(nsq: str, topic: str, queue: str, finish: int, requeue: int) -> None:
    """Take messages of a queue: some are finished, some requeued for an hour."""
    host, _, port = nsq.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        stream = connection.makefile("rb")

        def frame() -> tuple[int, bytes]:
            size, kind = struct.unpack(">ii", stream.read(8))
            return kind, stream.read(size - 4)

        connection.sendall(b"  V2IDENTIFY\n")
        asked = json.dumps({"headrace": 1, "msg_timeout": 60_000}).encode()
        connection.sendall(struct.pack(">i", len(asked)) + asked + b"SUB %s %s\n" % (topic.encode(), queue.encode()))
        connection.sendall(b"RDY %d\n" % (finish + requeue))
        taken = 0
        while taken < finish + requeue:
            kind, data = frame()
            assert kind != 1, data
            if kind != 2:
                continue
            id = data[10:26]
            connection.sendall(b"FIN %s\n" % id if taken < finish else b"REQ %s %d\n" % (id, 3_600_000))
            taken += 1
        connection.sendall(b"CLS\n")
        while frame()[1] != b"CLOSE_WAIT":
            pass


def write(kafka: str, nsq: str, address: str) -> dict[str, Any]:
    http = Http(address)
    admin = AdminClient({"bootstrap.servers": kafka})
    topics = {
        "orders": (3, {}),
        "logs": (1, {"durability": "async", "compression.type": "producer"}),
        "users": (1, {"cleanup.policy": "compact"}),
        "payments": (1, {}),
        "reminders": (1, {"delay": "true"}),
        "emails": (1, {"deduplication.window.ms": str(DAY_MS)}),
        "jobs": (1, {}),
    }
    made = [NewTopic(name, partitions, config=config) for name, (partitions, config) in topics.items()]
    for each in admin.create_topics(made).values():
        each.result(30)

    idempotent = Producer({"bootstrap.servers": kafka, "enable.idempotence": True, "compression.type": "zstd"})
    for number in range(300):
        idempotent.produce("orders", b"order %d" % number, b"%d" % (number % 7), headers={"n": b"%d" % number})
        idempotent.produce("logs", b"line %d" % number)
        idempotent.produce("users", b"%d" % number, b"user %d" % (number % 10))
    assert idempotent.flush(30) == 0

    transactional = Producer({"bootstrap.servers": kafka, "transactional.id": "bank"})
    transactional.init_transactions(30)
    for number, ending in enumerate(("commit", "abort", "commit")):
        transactional.begin_transaction()
        transactional.produce("payments", b"payment %d" % number)
        transactional.flush(30)
        if ending == "commit":
            transactional.commit_transaction(30)
        else:
            transactional.abort_transaction(30)
    unfinished = Producer({"bootstrap.servers": kafka, "transactional.id": "left", "transaction.timeout.ms": 900_000})
    unfinished.init_transactions(30)
    unfinished.begin_transaction()
    unfinished.produce("payments", b"never committed")
    unfinished.flush(30)

    readers = Consumer({"bootstrap.servers": kafka, "group.id": "readers", "enable.auto.commit": False})
    readers.commit(offsets=[TopicPartition("logs", 0, 123), TopicPartition("orders", 1, 7)], asynchronous=False)
    readers.close()

    resource = ConfigResource(ResourceType.BROKER, "0")
    entry = ConfigEntry("log.retention.ms", "777600000", incremental_operation=AlterConfigOpType.SET)
    resource.add_incremental_config(entry)
    for each in admin.incremental_alter_configs([resource]).values():
        each.result(30)

    http.ask("PUT", "/v1/topics/jobs/queues/workers", {"from": "earliest", "settings": {"max_attempts": 5}})
    http.ask("POST", "/v1/topics/jobs/messages", {"messages": [{"value": f"job {number}"} for number in range(20)]})
    settle(nsq, "jobs", "workers", 6, 3)

    now = http.ask("POST", "/v1/topics/reminders/messages", {"value": "soon"})
    later = http.ask("POST", "/v1/topics/reminders/messages", {"value": "tomorrow", "delay": "1d"})
    first = http.ask("POST", "/v1/topics/emails/messages", {"value": "hello", "dedup_id": "email-1"})
    waiting = http.ask("POST", "/v1/half", {"topic": "orders", "group": "shop", "value": "undecided", "key": "k"})
    decided = http.ask("POST", "/v1/half", {"topic": "orders", "group": "shop", "value": "decided", "key": "k"})
    committed = http.ask("POST", f"/v1/half/{decided['id']}/commit", {})
    return {
        "written_ms": time.time_ns() // 1_000_000,
        "now": now,
        "timer": later,
        "email": first,
        "undecided": waiting["id"],
        "committed": committed,
        "queue": http.ask("GET", "/v1/topics/jobs/queues/workers"),
    }


if __name__ == "__main__":
    json.dump(write(*sys.argv[1:4]), sys.stdout, indent=1)
