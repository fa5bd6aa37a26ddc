"""`headrace subscribe` as a process of its own, beside a broker that is one: killed under load, stopped, misused."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import ssl
import sys
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from bench.peers import free_port
from tests.certificates import Authority
from tests.serve_process import ServeProcess
from tests.waiting import SECONDS, until
from tests.webhooks.receiver import Got, Receiver, receiving

from headrace.webhooks import new_secret, verify

SECRET = new_secret()
MESSAGES = 600


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    data = tmp_path_factory.mktemp("broker") / "data"
    with ServeProcess(data, "--nsq", "127.0.0.1:0", "--http", "127.0.0.1:0") as serving:
        yield serving


def url_of(broker: ServeProcess) -> str:
    return f"headrace://{broker.kafka}?nsq={broker.addresses['nsq']}&http={broker.addresses['http']}"


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "headrace.cli", "subscribe", *arguments]


@asynccontextmanager
async def subscribed(tmp_path: Path, *arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process that pushes. What it logs goes to a file."""
    with (tmp_path / f"log{len(list(tmp_path.iterdir()))}").open("w") as log:
        environment = {**os.environ, "HEADRACE_WEBHOOK_SECRET": SECRET}
        process = await asyncio.create_subprocess_exec(
            *command(*arguments, "--log-format", "json"), stderr=log, env=environment
        )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def said(tmp_path: Path, event: str) -> list[dict[str, Any]]:
    """Lines of the logs."""
    # The last one may be half written.
    lines = [line for each in sorted(tmp_path.glob("log*")) for line in each.read_text().split("\n")[:-1]]
    return [line for line in map(json.loads, lines) if line["event"] == event]


async def post(broker: ServeProcess, path: str, body: bytes, kind: str = "application/x-ndjson") -> Any:
    request = urllib.request.Request(f"http://{broker.addresses['http']}{path}", body, {"Content-Type": kind})
    return await asyncio.to_thread(lambda: json.load(urllib.request.urlopen(request, timeout=30)))


async def get(broker: ServeProcess, path: str) -> Any:
    url = f"http://{broker.addresses['http']}{path}"
    return await asyncio.to_thread(lambda: json.load(urllib.request.urlopen(url, timeout=30)))


# A group waits for a member that is gone, for most of a minute.
@pytest.mark.parametrize("wire", ["headrace", pytest.param("kafka", marks=pytest.mark.long)])
async def test_killed_under_load(broker: ServeProcess, tmp_path: Path, wire: str):
    """Two side by side, one of which is killed again and again: nothing is lost, dead is what the endpoint refused."""
    topic = f"killed-{wire}"
    tried: Counter[bytes] = Counter()

    async def behave(got: Got) -> int:
        verify(got.body, got.headers, SECRET)
        tried[got.body] += 1
        await asyncio.sleep(0.02)
        number = int(got.body)
        if number % 50 == 7:
            return 422
        return 500 if number % 10 == 3 and tried[got.body] == 1 else 200

    lines = b"\n".join(b'{"value": "%d", "key": "%d"}' % (number, number) for number in range(MESSAGES))
    assert len((await post(broker, f"/topics/{topic}", lines))["messages"]) == MESSAGES
    url = url_of(broker) if wire == "headrace" else f"kafka://{broker.kafka}"
    async with receiving(behave) as receiver:
        flags = [topic, "--broker", url, "--url", receiver.url, "--group", "g", "--ladder", "100ms", "--workers", "4"]
        async with subscribed(tmp_path, *flags):
            for until_taken in (50, 200) if wire == "headrace" else (50,):
                async with subscribed(tmp_path, *flags) as other:
                    await until(lambda wanted=until_taken: len(receiver.taken) >= wanted, seconds=40)  # type: ignore[misc]
                    other.kill()
                    await other.wait()
            refused = {b"%d" % number for number in range(MESSAGES) if number % 50 == 7}
            good = {b"%d" % number for number in range(MESSAGES)} - refused
            await until(lambda: {got.body for got in receiver.taken} == good, seconds=60)
            await until(lambda: refused <= set(tried), seconds=60)
            if wire == "kafka":
                return
            dead = f"/v1/topics/{topic}/queues/g"
            async with asyncio.timeout(SECONDS):
                while (await get(broker, dead))["dead"] < len(refused):
                    await asyncio.sleep(0.05)
        # At most what was in hand came twice.
        repeated = sum(count - 1 for body, count in tried.items() if int(body) % 10 != 3)
        assert repeated <= 2 * 8
        assert {int(got.headers["headrace-attempt"]) for got in receiver.taken} >= {1, 2}

        # All dead ones again, and the endpoint has learned to take them.
        receiver.behave = lambda got: 200
        done = await post(broker, "/v1/redrive", json.dumps({"topic": f"{topic}.g.dead"}).encode(), "application/json")
        assert Counter(each["outcome"] for each in done["results"]) == {"redriven": len(refused)}
        assert {each["error"] for each in done["results"]} == {"HTTP 422 Unprocessable Entity"}
        async with subscribed(tmp_path, *flags):
            await until(lambda: refused <= {got.body for got in receiver.taken}, seconds=40)


async def test_the_broker_is_killed(tmp_path: Path):
    """What was answered is pushed, through the broker's end and its next life."""

    async def behave(got: Got) -> int:
        await asyncio.sleep(0.02)
        return 200

    # The same ports again: that is where the pusher looks for it.
    doors = ("--nsq", f"127.0.0.1:{free_port()}", "--http", f"127.0.0.1:{free_port()}")
    async with receiving(behave) as receiver:
        with ServeProcess(tmp_path / "data", *doors) as broker:
            flags = ["t", "--broker", url_of(broker), "--url", receiver.url, "--workers", "4", "--ladder", "100ms"]
            async with subscribed(tmp_path, *flags):
                await post(broker, "/topics/t", b"\n".join(b'{"value": "%d"}' % number for number in range(300)))
                await post(broker, "/topics/t?delay=1", b"300", "text/plain")
                await until(lambda: len(receiver.taken) > 50, seconds=40)
                broker.kill()
                await asyncio.to_thread(broker.start)
                await until(lambda: len({got.body for got in receiver.taken}) == 301, seconds=60)


async def test_a_stop_and_its_code(broker: ServeProcess, tmp_path: Path):
    async with receiving() as receiver:
        flags = ["stopped", "--broker", url_of(broker), "--url", receiver.url, "--url", receiver.url + "/2"]
        async with subscribed(tmp_path, *flags) as process:
            await until(lambda: len(said(tmp_path, "pushing")) == 2)
            await post(broker, "/topics/stopped?key=k", b"one tea", "text/plain")
            # Each URL gets it.
            await until(lambda: len(receiver.taken) == 2)
            process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(process.wait(), 40) == 0
        assert sorted(got.path for got in receiver.taken) == ["/hook", "/hook/2"]
        assert {got.headers["content-type"] for got in receiver.taken} == {"text/plain"}
        assert len({each["group"] for each in said(tmp_path, "pushing")}) == 2

        receiver.behave = lambda got: 410
        await post(broker, "/topics/stopped", b"another", "text/plain")
        async with subscribed(tmp_path, *flags) as process:
            assert await asyncio.wait_for(process.wait(), 40) == 3
        assert len(said(tmp_path, "the endpoint is gone (410): nothing more is sent to it")) == 2


async def test_by_a_file(broker: ServeProcess, tmp_path: Path):
    authority = Authority(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*authority.issue("127.0.0.1"))
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    async with receiving(tls=context) as receiver, receiving() as plain:
        config = tmp_path / "hooks.toml"
        config.write_text(
            f"""
            topic = "filed"
            broker = "{url_of(broker)}"
            secret_file = "{secret}"
            ladder = ["100ms", "1s"]

            [[hook]]
            url = "{receiver.url}"
            group = "safe"
            ca_file = "{authority.path}"
            headers = {{ Authorization = "Bearer x" }}
            filter = "region = eu"

            [[hook]]
            url = "{plain.url}"
            batch = 10
            """
        )
        async with subscribed(tmp_path, "--config", str(config)):
            await until(lambda: len(said(tmp_path, "pushing")) == 2)
            await post(broker, "/topics/filed?header.region=us", b"1", "text/plain")
            await post(broker, "/topics/filed?header.region=eu", b"2", "text/plain")
            await until(lambda: receiver.taken)
            await until(lambda: sum(len(json.loads(got.body)) for got in plain.taken) == 2)
    [got] = receiver.got
    assert (got.body, got.headers["authorization"], got.headers["headrace-header-region"]) == (b"2", "Bearer x", "eu")
    assert verify(got.body, got.headers, SECRET)


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl")
async def test_from_curl_to_a_receiver(broker: ServeProcess, tmp_path: Path):
    """The publish API as people use it, and the same events at the other end."""

    async def curl(*arguments: str) -> Any:
        address = f"http://{broker.addresses['http']}/topics/curled"
        process = await asyncio.create_subprocess_exec(
            "curl", "-sS", *arguments[1:], address + arguments[0], stdout=asyncio.subprocess.PIPE
        )
        out, _ = await asyncio.wait_for(process.communicate(), SECONDS)
        return json.loads(out)

    file = tmp_path / "body.bin"
    file.write_bytes(bytes(range(256)) * 100)
    async with receiving() as receiver:
        flags = ["curled", "--broker", url_of(broker), "--url", receiver.url]
        assert (await curl("?key=42", "-d", "one tea"))["offset"] == 0
        await curl("", "--data-binary", f"@{file}", "-H", "Content-Type: image/png", "-H", "Headrace-Header-A: b")
        twice = [await curl("?dedup_id=7", "-d", "once") for _ in range(2)]
        assert [each["duplicate"] for each in twice] == [False, True]
        later = await curl("?delay=1s", "-d", "later")
        assert later["offset"] is None
        event = '{"specversion":"1.0","id":"7","source":"/shop","type":"placed","data":{"n":1},"subject":"s"}'
        await curl("", "-d", event, "-H", "Content-Type: application/cloudevents+json")
        ce = {"specversion": "1.0", "id": "8", "source": "/shop", "type": "placed"}
        binary = [part for name, value in ce.items() for part in ("-H", f"ce-{name}: {value}")]
        await curl("", "-d", "<a/>", "-H", "Content-Type: text/xml", *binary)
        assert "ttl" in (await curl("?ttl=7", "-d", "x"))["message"]
        async with subscribed(tmp_path, *flags):
            await until(lambda: len(receiver.taken) == 6)
    by_body = {got.body: got.headers for got in receiver.taken}
    assert by_body[b"one tea"]["ce-subject"] == "42"
    assert by_body[file.read_bytes()]["content-type"] == "image/png"
    assert by_body[file.read_bytes()]["headrace-header-a"] == "b"
    assert b"once" in by_body
    found = by_body[b'{"n":1}']
    assert (found["ce-id"], found["ce-source"], found["ce-subject"]) == ("7", "/shop", "s")
    assert (found["content-type"], found["webhook-id"]) == ("application/json", "curled/0/3")
    assert (by_body[b"<a/>"]["ce-id"], by_body[b"<a/>"]["content-type"]) == ("8", "text/xml")


async def test_a_broker_that_is_not_there(tmp_path: Path):
    gone = Receiver()
    await gone.start()
    await gone.stop()
    address = f"127.0.0.1:{gone.port}"
    async with subscribed(
        tmp_path, "t", "--broker", f"headrace://{address}?nsq={address}&http={address}", "--url", gone.url
    ) as process:
        assert await asyncio.wait_for(process.wait(), 60) == 1
    text = "".join(each.read_text() for each in tmp_path.glob("log*"))
    assert "Traceback" not in text
    assert address in text.splitlines()[-1]
