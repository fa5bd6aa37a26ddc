from __future__ import annotations

import pytest
from tests.doors.http.api.conftest import Served

from headrace.broker.publish import Message
from headrace.broker.security import Session


async def waiting(served: Served, topic: str, dues: list[int]) -> list[str]:
    """Messages that wait; their ids."""
    messages = [Message(b"\xff", b"later", [], due_ms=due) for due in dues]
    return [place.timer for place in await served.broker.publisher.publish(Session(), topic, messages)]


async def test_list_and_cancel(served: Served):
    await served.topic("orders")
    await served.topic("others")
    soon = served.broker.runtime.clock.now_ms() + 3_600_000
    ids = await waiting(served, "orders", [soon + 2, soon, soon + 1])
    (other,) = await waiting(served, "others", [soon + 3])
    status, listed = await served.ask("GET", "/v1/timers")
    assert status == 200
    assert [each["id"] for each in listed["timers"]] == [ids[1], ids[2], ids[0], other]
    assert (listed["pending"], listed["next"]) == (4, None)
    first = listed["timers"][0]
    assert (first["topic"], first["partition"], first["due_ms"]) == ("orders", 0, soon)
    assert (first["key_base64"], first["value_bytes"]) == ("/w==", 5)

    status, page = await served.ask("GET", "/v1/timers?topic=orders&limit=2")
    assert status == 200, page
    assert [each["id"] for each in page["timers"]] == [ids[1], ids[2]]
    _, page = await served.ask("GET", f"/v1/timers?topic=orders&limit=2&after={page['next']}")
    assert [each["id"] for each in page["timers"]] == [ids[0]]
    assert page["next"] is None

    assert await served.ask("DELETE", f"/v1/timers/{ids[1]}") == (200, {"id": ids[1], "cancelled": True})
    status, error = await served.ask("DELETE", f"/v1/timers/{ids[1]}")
    assert (status, error["error"]) == (404, "UnknownTimer")
    assert len((await served.ask("GET", "/v1/timers"))[1]["timers"]) == 3


@pytest.mark.parametrize(
    ("method", "path", "status", "word"),
    [
        ("GET", "/v1/timers?limit=0", 400, "limit"),
        ("GET", "/v1/timers?limit=1001", 400, "1000"),
        ("GET", "/v1/timers?topic=none", 404, "none"),
        ("GET", "/v1/timers?after=x", 400, "after"),
        ("GET", "/v1/timers?til=x", 400, "til"),
        ("POST", "/v1/timers", 405, "GET"),
        ("DELETE", "/v1/timers/x", 404, "x"),
        ("DELETE", "/v1/timers/" + "0" * 32, 404, "0000"),
    ],
)
async def test_what_goes_wrong(served: Served, method: str, path: str, status: int, word: str):
    answered, error = await served.ask(method, path)
    assert answered == status
    assert word in error["message"]
