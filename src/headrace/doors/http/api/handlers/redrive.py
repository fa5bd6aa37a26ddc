"""Redrive over HTTP, a step a request.

A request does about a second's work, says what became of each letter, and where to go on (`next`): the client sends the
same request again with that, until there is none. So nothing of a run lives in the broker, and a client that goes away
leaves nothing behind.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping
from typing import Any

from headrace.broker.broker import Broker
from headrace.broker.dead_letters import Selection
from headrace.broker.redrive import STEP_RESULTS, Order, Place, Result
from headrace.doors.http.api.answers import Fields, bad, found, put_bytes
from headrace.doors.http.server.messages import Request, Response

INT64_MAX = (1 << 63) - 1
# How much is shown of a key or an error: a step has a thousand.
TEXT_MAX = 1_024


async def step(broker: Broker, request: Request, names: Mapping[str, str]) -> Response:
    """POST /v1/redrive"""
    done = await broker.redrive.step(_order(Fields.of_body(request.body)))
    return found(
        {
            "results": [_result(each) for each in done.results],
            "unselected": done.unselected,
            "redriven_before": done.before,
            "unreadable": done.unreadable,
            "left": done.left,
            "waiting": done.waiting,
            "next": None
            if done.next is None
            else {
                "positions": {str(index): at for index, at in done.next.positions.items()},
                "ends": {str(index): at for index, at in done.next.ends.items()},
            },
        }
    )


def _order(fields: Fields) -> Order:
    key: bytes | None = None
    if (encoded := fields.take("key_base64")) is not None:
        try:
            key = b64decode(encoded, validate=True)
        except (ValueError, TypeError):
            raise bad("key_base64 is not Base64") from None
    if (text := fields.take("key")) is not None:
        key = fields.text("key", text).encode()
    order = Order(
        topic=fields.text("topic"),
        selection=Selection(
            topic=fields.text("origin"),
            queue=fields.text("queue"),
            since_ms=fields.number("since_ms", -INT64_MAX, -INT64_MAX),
            until_ms=fields.number("until_ms", INT64_MAX, -INT64_MAX),
            key=key,
            error=fields.text("error"),
            error_pattern=fields.text("error_pattern"),
        ),
        limit=fields.number("limit", STEP_RESULTS, 1),
        rate=_rate(fields.take("rate", 0)),
        dry_run=fields.flag("dry_run"),
        all_queues=fields.flag("all_queues"),
        place=_place(fields.take("next")),
    )
    fields.end()
    if not order.topic:
        raise bad("topic is missing: name the dead-letter topic")
    return order


def _rate(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e9:
        raise bad(f"rate is {value!r} where a number of messages a second is wanted (0: no limit)")
    if 0 < value < 0.1:
        raise bad(f"rate is {value}: the slowest is 0.1, one message in ten seconds")
    return float(value)


def _place(value: Any) -> Place | None:
    if value is None:
        return None
    fields = Fields(value if isinstance(value, dict) else {"next": value})
    place = Place(_offsets(fields.object("positions")), _offsets(fields.object("ends")))
    fields.end()
    if set(place.positions) != set(place.ends):
        raise bad("next names other partitions in its positions than in its ends: send it as it came")
    return place


def _offsets(given: Mapping[str, Any]) -> dict[int, int]:
    offsets = Fields(given)
    try:
        return {int(index): offsets.number(index, 0) for index in given}
    except ValueError:
        raise bad("next has a partition that is no number: send it as it came") from None


def _result(result: Result) -> dict[str, Any]:
    letter = result.letter
    partition, offset = letter.parked_from or (result.partition, letter.offset)
    said: dict[str, Any] = {"outcome": result.outcome, "partition": partition, "offset": offset}
    if result.reason:
        said["reason"] = result.reason
    said["origin"] = {
        "topic": letter.topic,
        "partition": letter.partition,
        "offset": letter.origin_offset,
        "queue": letter.queue,
    }
    if result.sent_to >= 0:
        said["sent_to"] = result.sent_to
    put_bytes(said, "key", letter.key, TEXT_MAX)
    said |= {
        "attempts": letter.attempts,
        "error": letter.error[:TEXT_MAX],
        "dead_at_ms": letter.dead_at,
        "redriven": letter.redriven,
    }
    return said
