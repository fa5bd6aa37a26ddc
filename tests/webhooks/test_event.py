"""Messages as CloudEvents over HTTP."""

from __future__ import annotations

import json
from base64 import b64encode

import pytest

from headrace.sdk import Message
from headrace.webhooks.event import Form, id_of, request_of

TIME = 1_763_251_200_123


def message(value: bytes = b'{"a": 1}', key: bytes | None = b"k", headers: dict[str, bytes] | None = None) -> Message:
    return Message("orders.eu", value, key, headers or {}, 3, 7, TIME, 2)


def binary(sent: Message, form: Form | None = None) -> dict[str, str]:
    return {name.lower(): value for name, value in request_of([sent], form or Form(), False).headers.items()}


def structured(sent: Message, **form: str) -> dict[str, object]:
    request = request_of([sent], Form(structured=True, **form), False)  # type: ignore[arg-type]
    assert request.headers["Content-Type"] == "application/cloudevents+json"
    found: dict[str, object] = json.loads(request.body)
    return found


def test_a_plain_message():
    request = request_of([message()], Form(), False)
    assert (request.id, request.body) == ("orders.eu/3/7", b'{"a": 1}')
    assert request.headers == {
        "Headrace-Attempt": "2",
        "ce-specversion": "1.0",
        "ce-id": "orders.eu/3/7",
        "ce-source": "/topics/orders.eu",
        "ce-type": "headrace.message",
        "ce-time": "2025-11-16T00:00:00.123Z",
        "ce-subject": "k",
        "ce-partitionkey": "k",
        "Content-Type": "application/json",
    }
    assert structured(message()) == {
        "specversion": "1.0",
        "id": "orders.eu/3/7",
        "source": "/topics/orders.eu",
        "type": "headrace.message",
        "time": "2025-11-16T00:00:00.123Z",
        "subject": "k",
        "partitionkey": "k",
        "datacontenttype": "application/json",
        "data": {"a": 1},
    }


def test_what_the_operator_says():
    form = Form("urn:shop", "order.placed", "text/csv")
    found = binary(message(b"a,b"), form)
    assert (found["ce-source"], found["ce-type"], found["content-type"]) == ("urn:shop", "order.placed", "text/csv")


@pytest.mark.parametrize(
    ("value", "kind", "data"),
    [
        (b'{"n": 12345678901234567890.0}', "application/json", {"data": {"n": 12345678901234567890.0}}),
        (b"tea \xc3\xbc", "text/plain; charset=utf-8", {"data": "tea ü"}),
        (b"\xff\x00", "application/octet-stream", {"data_base64": "/wA="}),
        (b"", "text/plain; charset=utf-8", {"data": ""}),
        (b"[" * 100_000, "text/plain; charset=utf-8", {"data": "[" * 100_000}),
    ],
)
def test_types_that_are_found_out(value: bytes, kind: str, data: dict[str, object]):
    assert binary(message(value))["content-type"] == kind
    found = structured(message(value))
    assert found["datacontenttype"] == kind
    assert {name: each for name, each in found.items() if name.startswith("data") and name != "datacontenttype"} == data


def test_types_that_are_given():
    png = message(b"\x89PNG", headers={"content-type": b"image/png"})
    assert binary(png)["content-type"] == "image/png"
    assert structured(png)["data_base64"] == b64encode(b"\x89PNG").decode()
    # It says JSON, and is none: nothing is lost.
    broken = message(b"{", headers={"content-type": b"application/json"})
    assert binary(broken)["content-type"] == "application/json"
    assert structured(broken)["data_base64"] == "ew=="
    special = message(b"7", headers={"content-type": b"application/vnd.shop+json; v=1"})
    assert structured(special)["data"] == 7
    evil = message(b"7", headers={"content-type": b"text/plain\r\nX-Evil: 1"})
    assert "\r" not in binary(evil)["content-type"]


def test_the_bytes_of_json_are_not_touched():
    value = b'{"b":1.0,  "a":1e40, "b":"\\u00fc"}'
    request = request_of([message(value)], Form(structured=True), False)
    assert value in request.body


def test_an_event_that_was_stored_as_one():
    stored = {
        "ce_specversion": b"1.0",
        "ce_id": b"7",
        "ce_source": b"/shop",
        "ce_type": b"order.placed",
        "ce_subject": "grün %".encode(),
        "ce_colour": b"red",
        "ce_BAD": b"x",
        "content-type": b"text/plain",
    }
    found = binary(message(b"x", headers=stored))
    assert {name: value for name, value in found.items() if name.startswith(("ce-", "content"))} == {
        "ce-specversion": "1.0",
        "ce-id": "7",
        "ce-source": "/shop",
        "ce-type": "order.placed",
        "ce-subject": "gr%C3%BCn%20%25",
        "ce-colour": "red",
        "content-type": "text/plain",
    }
    # Whoever signs knows the message by its place: two events may bear the same id.
    assert request_of([message(b"x", headers=stored)], Form(), False).id == "orders.eu/3/7"
    assert structured(message(b"x", headers=stored))["subject"] == "grün %"
    # Not all that an event needs.
    del stored["ce_type"]
    assert binary(message(b"x", headers=stored))["ce-id"] == "orders.eu/3/7"


def test_headers_are_carried_and_made_safe():
    headers = {
        "Trace": b"7",
        "a b\r\nc": "x\r\nEvil: ü".encode(),
        "raw": b"\xff",
        "traceparent": b"00-ab-cd-01",
        "headrace-dedup-id": b"no",
    }
    found = binary(message(headers=headers))
    assert found["headrace-header-trace"] == "7"
    assert found["headrace-header-a-b--c"] == "x%0D%0AEvil:%20%C3%BC"
    assert found["headrace-header-raw"] == "%EF%BF%BD"
    assert found["traceparent"] == "00-ab-cd-01"
    assert not any("dedup" in name for name in found)
    event = structured(message(headers={**headers, "id": b"mine", "-": b"y"}))
    assert (event["trace"], event["abc"], event["rawbase64"]) == ("7", "x\r\nEvil: ü", "/w==")
    assert (event["traceparent"], event["headerid"], event["header"]) == ("00-ab-cd-01", "mine", "y")
    assert event["id"] == "orders.eu/3/7"
    request = request_of([message(headers=headers)], Form(structured=True), False)
    assert request.headers["traceparent"] == "00-ab-cd-01"


def test_more_headers_than_a_server_takes():
    headers = {f"h{number}": b"x" * 1_000 for number in range(10)}
    found = binary(message(headers=headers))
    assert sum(name.startswith("headrace-header-") for name in found) == 6
    assert found["headrace-headers-dropped"] == "4"
    # Inside of the body there is room.
    assert sum(name.startswith("h") for name in structured(message(headers=headers))) == 10


def test_keys():
    assert binary(message(key="grün".encode()))["ce-subject"] == "gr%C3%BCn"
    odd = binary(message(key=b"\xff"))
    assert "ce-subject" not in odd
    assert odd["ce-keybase64"] == "/w=="
    assert "ce-subject" not in binary(message(key=None))
    assert "ce-subject" not in binary(message(key=b""))


def test_batches():
    many = [Message("t", b"%d" % number, None, {}, 0, number, TIME) for number in range(3)]
    request = request_of(many, Form(), True)
    assert request.headers == {"Content-Type": "application/cloudevents-batch+json"}
    assert [each["data"] for each in json.loads(request.body)] == [0, 1, 2]
    assert request.id.startswith("batch/")
    assert request_of(many, Form(), True).id == request.id
    assert request_of(many[:2], Form(), True).id != request.id
    assert request_of(many[:1], Form(), True).id == "t/0/0"


def test_ids_of_a_system_without_coordinates():
    first = Message("t", b"x", b"k", {}, -1, -1, TIME, 1)
    again = Message("t", b"x", b"k", {"other": b"1"}, -1, -1, TIME, 5)
    assert id_of(first) == id_of(again)
    others = [Message("t", b"xk", b"", {}, -1, -1, TIME), Message("t", b"x", b"k", {}, -1, -1, TIME + 1)]
    assert len({id_of(each) for each in (first, *others)}) == 3


@pytest.mark.parametrize("timestamp_ms", [-1, 253_402_300_800_000, 1_700_000_000_000_000, (1 << 63) - 1])
def test_a_time_that_no_calendar_has_is_left_out(timestamp_ms: int) -> None:
    request = request_of([Message("orders", b"x", partition=0, offset=7, timestamp_ms=timestamp_ms)], Form(), False)
    assert "ce-time" not in request.headers


def test_the_last_time_of_all() -> None:
    message = Message("orders", b"x", partition=0, offset=7, timestamp_ms=253_402_300_799_000)
    assert request_of([message], Form(), False).headers["ce-time"] == "9999-12-31T23:59:59.000Z"
