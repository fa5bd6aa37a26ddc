"""pynsq as a process of its own, in the shape that `clients.py` describes."""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
import time
from typing import Any

import nsq

Spec = dict[str, Any]


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


def settings(spec: Spec) -> dict[str, Any]:
    given: dict[str, Any] = {"timeout": 10.0, "output_buffer_timeout": 0}
    if spec.get("tls_ca"):
        given |= {"tls_v1": True, "tls_options": {"cert_reqs": ssl.CERT_REQUIRED, "ca_certs": spec["tls_ca"]}}
    if spec.get("snappy"):
        given["snappy"] = True
    if spec.get("deflate"):
        given["deflate"] = True
    if spec.get("auth"):
        given["auth_secret"] = spec["auth"]
    if spec.get("msg_timeout_ms"):
        given["msg_timeout"] = spec["msg_timeout_ms"] / 1000
    return given


async def publish(spec: Spec) -> None:
    loop = asyncio.get_running_loop()
    writer = nsq.Writer([spec["nsqd"]], **settings(spec))
    while not writer.conns:
        await asyncio.sleep(0.01)
    bodies = [body.encode() for body in spec["bodies"]]

    async def done(command: Any, *arguments: Any) -> None:
        answered: asyncio.Future[bytes] = loop.create_future()
        command(spec["topic"], *arguments, callback=lambda _, data: answered.set_result(data))
        data = await answered
        if data != b"OK":
            raise RuntimeError(f"the answer is {data!r}")

    if spec["how"] == "batch":
        await done(writer.mpub, bodies)
    else:
        for body in bodies:
            if spec["how"] == "defer":
                await done(writer.dpub, spec["defer_ms"], body)
            else:
                await done(writer.pub, body)
    say(published=len(bodies))


async def consume(spec: Spec) -> None:
    ended = asyncio.Event()
    left = spec.get("count") or 1 << 62

    def finish(message: nsq.Message) -> None:
        nonlocal left
        message.finish()
        left -= 1
        if not left:
            ended.set()

    async def hold(message: nsq.Message) -> None:
        for _ in range(8):
            await asyncio.sleep(spec["hold_ms"] / 8000)
            message.touch()
        finish(message)

    held = set()

    def handle(message: nsq.Message) -> bool | None:
        at = int(time.time() * 1000)
        body, named = message.body.decode(), message.id.decode()
        say(body=body, attempts=message.attempts, timestamp=message.timestamp, id=named, at=at)
        message.enable_async()
        first = spec.get("first", "finish") if message.attempts == 1 else "finish"
        if first == "requeue":
            message.requeue(time_ms=spec["delay_ms"], backoff=False)
        elif first == "touch":
            task = asyncio.get_running_loop().create_task(hold(message))
            held.add(task)
        elif first == "fail":
            message.requeue(time_ms=spec["delay_ms"])
        elif first == "finish":
            finish(message)
        return None

    where: dict[str, Any] = {"nsqd_tcp_addresses": [spec["nsqd"]]} if spec.get("nsqd") else {}
    if spec.get("lookup"):
        where = {"lookupd_http_addresses": [spec["lookup"]], "lookupd_poll_interval": 1, "lookupd_poll_jitter": 0.0}
    reader = nsq.Reader(
        spec["topic"],
        spec["channel"],
        message_handler=handle,
        max_in_flight=spec.get("in_flight", 1),
        max_tries=0,
        max_backoff_duration=1,
        **where,
        **settings(spec),
    )
    await ended.wait()
    # pynsq has no clean end of its own: what was written must leave first.
    await asyncio.sleep(0.2)
    reader.close()


def main() -> None:
    spec = json.loads(sys.argv[1])
    try:
        asyncio.run(publish(spec) if spec["do"] == "publish" else consume(spec))
    except RuntimeError as error:
        say(error=str(error))
        sys.exit(1)


if __name__ == "__main__":
    main()
