"""Registration: asked for, decided, and enforced at every door by what clients then can do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.doors.http.api.conftest import Served, serving

from headrace.addresses import parse_address
from headrace.broker.console.documents import Documents
from headrace.client import Client, ClientError
from headrace.config import Config
from headrace.errors import StorageFailed
from headrace.server import Server

PATH = "/v1/registrations"
TOPIC = {"kind": "topic", "topic": "orders", "owner": "shop", "contacts": ["a@example.org"], "rate": 5}
CONSUMER = {"kind": "consumer", "topic": "orders", "group": "mail", "owner": "mailers"}


async def asked(served: Served, body: dict[str, Any]) -> dict[str, Any]:
    status, answer = await served.ask("POST", PATH, body)
    assert status == 201, answer
    return dict(answer)


async def decided(served: Served, id: str, decision: str, **body: Any) -> dict[str, Any]:
    status, answer = await served.ask("POST", f"{PATH}/{id}/{decision}", body)
    assert status == 200, answer
    return dict(answer)


async def test_it_is_asked_for_listed_and_decided(served: Served):
    topic = await asked(served, {**TOPIC, "retention_ms": 5_000, "partitions": 3})
    assert (topic["state"], topic["owner"], topic["decided_ms"]) == ("requested", "shop", None)
    consumer = await asked(served, CONSUMER)
    status, answer = await served.ask("POST", PATH, CONSUMER)
    assert (status, answer["error"]) == (409, "RegistrationExists")
    _, listed = await served.ask("GET", f"{PATH}?search=mail&sort=owner")
    assert ([each["id"] for each in listed["registrations"]], listed["mode"]) == ([consumer["id"]], "allow")
    approved = await decided(served, topic["id"], "approve", reason="fine", create=True)
    assert (approved["state"], approved["reason"]) == ("approved", "fine")
    made = served.broker.topics.existing("orders")
    assert (len(made.partitions), made.settings.retention_ms) == (3, 5_000)
    # A consumer that was approved is watched.
    await decided(served, consumer["id"], "approve")
    _, rule = await served.ask("GET", f"/v1/alerts/rules/registration-{consumer['id']}")
    assert (rule["scope"], rule["labels"]) == ({"group": "mail", "topic": "orders"}, {"owner": "mailers"})
    await served.restart()
    _, kept = await served.ask("GET", f"{PATH}?state=approved")
    assert kept["total"] == 2
    await decided(served, consumer["id"], "reject", reason="no more")
    assert (await served.ask("GET", f"/v1/alerts/rules/registration-{consumer['id']}"))[0] == 404
    # What was rejected can be asked for again.
    await asked(served, CONSUMER)
    assert (await served.ask("DELETE", f"{PATH}/{topic['id']}"))[0] == 200
    assert (await served.ask("GET", f"{PATH}/{topic['id']}"))[0] == 404
    assert served.broker.topics.get("orders") is not None


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "x"},
        {"topic": "a b"},
        {"topic": ""},
        {"owner": " "},
        {"group": "g"},
        {"contacts": "x"},
        {"contacts": [1]},
        {"contacts": ["x"] * 21},
        {"rate": -1},
        {"retention_ms": -2},
        {"description": "x" * 2_001},
        {"kind": "consumer"},
    ],
)
async def test_what_is_no_registration(served: Served, wrong: dict[str, Any]):
    assert (await served.ask("POST", PATH, {**TOPIC, **wrong}))[0] == 400


# --- enforcement ------------------------------------------------------------------------------------------------------


async def publish(served: Served, topic: str = "orders") -> tuple[int, str]:
    status, answer = await served.ask("POST", f"/v1/topics/{topic}/messages", {"value": "x"})
    return status, answer.get("error", "")


async def unregistered(served: Served) -> list[tuple[str, str, str]]:
    _, answer = await served.ask("GET", f"{PATH}/unregistered")
    return [(each["kind"], each["topic"], each["group"]) for each in answer["uses"]]


async def test_a_warning_refuses_nothing(tmp_path: Path):
    async with serving(tmp_path, registration="warn") as served:
        await served.topic("orders")
        assert await publish(served) == (200, "")
        assert await unregistered(served) == [("topic", "orders", "")]


async def test_a_topic_is_refused_until_it_is_approved(tmp_path: Path):
    async with serving(tmp_path, registration="refuse") as served:
        await served.topic("orders")
        assert (await publish(served))[0] in (401, 403)
        assert await unregistered(served) == [("topic", "orders", "")]
        id = (await asked(served, TOPIC))["id"]
        assert (await publish(served))[0] in (401, 403)
        await decided(served, id, "approve")
        assert await publish(served) == (200, "")
        # An admission that is kept ends with the registration.
        await decided(served, id, "reject")
        assert (await publish(served))[0] in (401, 403)
        await decided(served, id, "approve")
        await served.restart()
        assert await publish(served) == (200, "")


@asynccontextmanager
async def all_doors(data: Path) -> AsyncIterator[Served]:
    config = Config(
        data=str(data), kafka="127.0.0.1:0", http="127.0.0.1:0", nsq="127.0.0.1:0", nsq_http="off", lookup="off",
        lookup_http="off", rocketmq="off", rocketmq_namesrv="off", rocketmq_grpc="off", durability="async",
        registration="refuse",
    )  # fmt: skip
    served = Served(Server(config))
    await served.server.start()
    try:
        yield served
    finally:
        await served.server.stop()


async def nsq_answer(served: Served, command: bytes) -> bytes:
    place = parse_address(served.server.addresses["nsq"])
    assert place is not None
    reader, writer = await asyncio.open_connection(*place)
    writer.write(b"  V2" + command)
    try:
        return await reader.readexactly(10)
    finally:
        writer.close()


async def test_it_is_enforced_at_other_doors(tmp_path: Path):
    async with all_doors(tmp_path) as served:
        await served.broker.topics.create("orders", 1)
        pub = b"PUB orders\n\x00\x00\x00\x01x"
        async with Client(served.server.addresses["kafka"]) as client:
            producer = client.producer()
            with pytest.raises(ClientError, match=r"(?i)authoriz"):
                await (await producer.send("orders", b"x"))
            await producer.close(flush=False)
            assert b"OK" not in await nsq_answer(served, pub)
            assert b"OK" not in await nsq_answer(served, b"SUB orders mail\n")
            ids = [(await asked(served, body))["id"] for body in (TOPIC, CONSUMER)]
            for id in ids:
                await decided(served, id, "approve")
            other = client.producer()
            assert await (await other.send("orders", b"x"))
            # What the connection keeps of it ends with the registration.
            await decided(served, ids[0], "reject")
            with pytest.raises(ClientError, match=r"(?i)authoriz"):
                await (await other.send("orders", b"x"))
            await other.close(flush=False)
            await decided(served, ids[0], "approve")
            assert b"OK" in (await nsq_answer(served, pub))[4:]
            assert b"OK" in (await nsq_answer(served, b"SUB orders mail\n"))[4:]
        assert ("consumer", "orders", "mail") in await unregistered(served)


async def quota(served: Served) -> dict[str, float]:
    _, answer = await served.ask("GET", "/v1/quotas?user=shop")
    return {name: value for each in answer["quotas"] for name, value in each["quotas"].items()}


async def test_limits_follow_from_what_is_approved(served: Served):
    """The topic's retention, and twice what all approved registrations of a user expect."""
    expects = {"user": "shop", "rate": 100, "message_bytes": 500}
    for topic in ("orders", "mail"):
        await served.topic(topic)
    first = (await asked(served, {**TOPIC, **expects, "retention_ms": 86_400_000}))["id"]
    second = (await asked(served, {**TOPIC, **expects, "topic": "mail", "rate": 50}))["id"]
    consumer = (await asked(served, {**CONSUMER, **expects}))["id"]
    await decided(served, first, "approve")
    assert await quota(served) == {}, "only where the operator says so"
    for id, together in ((first, 100_000), (second, 150_000)):
        status, answer = await served.ask("POST", f"/v1/registrations/{id}/approve", {"limits": True})
        assert (status, answer["limits"]) == (200, True)
        assert await quota(served) == {"producer_byte_rate": together}
    _, settings = await served.ask("GET", "/v1/topics/orders")
    assert settings["settings"]["retention.ms"] == "86400000"
    await served.ask("POST", f"/v1/registrations/{consumer}/approve", {"limits": True})
    assert await quota(served) == {"producer_byte_rate": 150_000, "consumer_byte_rate": 100_000}
    await decided(served, first, "reject")
    assert await quota(served) == {"producer_byte_rate": 50_000, "consumer_byte_rate": 100_000}
    for id in (second, consumer):
        await served.ask("DELETE", f"/v1/registrations/{id}")
    assert await quota(served) == {}
    bare = (await asked(served, {**TOPIC, "topic": "bare"}))["id"]
    status, answer = await served.ask("POST", f"/v1/registrations/{bare}/approve", {"limits": True})
    assert (status, "no limit follows" in answer["message"]) == (400, True)


async def test_what_cannot_be_read_is_refused_until_it_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async with serving(tmp_path, registration="refuse") as served:
        await served.topic("orders")
        await decided(served, (await asked(served, TOPIC))["id"], "approve")

        async def fail(_: Documents) -> None:
            raise StorageFailed("the disk does not answer")

        with monkeypatch.context() as patch:
            patch.setattr(Documents, "load", fail)
            await served.restart()
            status, words = await publish(served)
            assert status in (401, 403)
            status, answer = await served.ask("POST", "/v1/topics/orders/messages", {"value": "x"})
            assert "registrations cannot be read yet, so the topic 'orders' is refused" in answer["message"], words
        async with asyncio.timeout(30):
            while await publish(served) != (200, ""):
                await asyncio.sleep(0.05)
