"""gnsq as a process of its own, in the shape that `clients.py` describes."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import gevent
import gnsq
from gevent.event import Event

Spec = dict[str, Any]


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


def settings(spec: Spec) -> dict[str, Any]:
    given: dict[str, Any] = {"output_buffer_timeout": 0}
    if spec.get("snappy"):
        given["snappy"] = True
    if spec.get("deflate"):
        given["deflate"] = True
    if spec.get("auth"):
        given["auth_secret"] = spec["auth"].encode()
    return given


def publish(spec: Spec) -> None:
    producer = gnsq.Producer([spec["nsqd"]], **settings(spec))
    producer.start()
    bodies = [body.encode() for body in spec["bodies"]]
    if spec["how"] == "batch":
        producer.multipublish(spec["topic"], bodies)
    else:
        for body in bodies:
            producer.publish(spec["topic"], body, defer=spec["defer_ms"] if spec["how"] == "defer" else None)
    producer.close()
    say(published=len(bodies))


def consume(spec: Spec) -> None:
    ended = Event()
    left = spec.get("count") or 1 << 62

    def finish(message: gnsq.Message) -> None:
        nonlocal left
        message.finish()
        left -= 1
        if not left:
            ended.set()

    def hold(message: gnsq.Message) -> None:
        for _ in range(8):
            gevent.sleep(spec["hold_ms"] / 8000)
            message.touch()
        finish(message)

    def handle(_: gnsq.Consumer, message: gnsq.Message) -> None:
        at = int(time.time() * 1000)
        body, named = message.body.decode(), message.id.decode()
        say(body=body, attempts=message.attempts, timestamp=message.timestamp, id=named, at=at)
        message.enable_async()
        first = spec.get("first", "finish") if message.attempts == 1 else "finish"
        if first == "requeue":
            message.requeue(spec["delay_ms"], backoff=False)
        elif first == "fail":
            message.requeue(spec["delay_ms"])
        elif first == "touch":
            gevent.spawn(hold, message)
        elif first == "finish":
            finish(message)

    where: dict[str, Any] = {"nsqd_tcp_addresses": [spec["nsqd"]]} if spec.get("nsqd") else {}
    if spec.get("lookup"):
        where = {"lookupd_http_addresses": [spec["lookup"]], "lookupd_poll_interval": 1}
    consumer = gnsq.Consumer(
        spec["topic"],
        spec["channel"],
        message_handler=handle,
        max_in_flight=spec.get("in_flight", 1),
        max_tries=0,
        max_backoff_duration=1,
        **where,
        **settings(spec),
    )
    consumer.start(block=False)
    ended.wait()
    consumer.close()


def main() -> None:
    spec = json.loads(sys.argv[1])
    try:
        (publish if spec["do"] == "publish" else consume)(spec)
    except gnsq.errors.NSQException as error:
        say(error=str(error))
        sys.exit(1)


if __name__ == "__main__":
    main()
