"""Storing what was published over HTTP, for now or for later: all of a request or nothing, in one append."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.broker.broker import Broker
from headrace.broker.deduplication.ids import HEADER, ID_BYTES_MAX
from headrace.broker.publish import Headers, Message, Place, Session
from headrace.doors.http.api.answers import Refused, bad
from headrace.errors import InvalidDelay, UnknownPartition

DEDUPLICATION_ID = HEADER.decode()
PARTITION_MAX = (1 << 31) - 1
# Everybody else waits while they are taken apart: about a quarter of a second for so many.
MESSAGES_MAX = 10_000


def check_count(count: int) -> None:
    """Raise unless so many messages may come in one request."""
    if count > MESSAGES_MAX:
        raise Refused(
            413, "TooManyMessages", f"a request has {MESSAGES_MAX} messages at most: send the others in another one"
        )


def with_id(headers: Headers, id: bytes | None) -> Headers:
    """The headers of a message that was given a deduplication id."""
    if id is None:
        return headers
    if not 1 <= len(id) <= ID_BYTES_MAX:
        raise bad(f"dedup_id is a text of 1 to {ID_BYTES_MAX} bytes")
    if any(name == DEDUPLICATION_ID for name, _ in headers):
        raise bad(f"dedup_id and the header {DEDUPLICATION_ID} are both given: one of them is enough")
    return [*headers, (DEDUPLICATION_ID, id)]


async def store(broker: Broker, name: str, messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Store messages, and return once they are durable: what to answer for each. Raises a HeadraceError or Refused, and
    has then stored nothing."""
    session = Session(int.from_bytes(broker.runtime.random.bytes(4), "big"))
    try:
        return [_answer(place) for place in await broker.publisher.publish(session, name, messages)]
    except (InvalidDelay, UnknownPartition) as error:
        raise bad(str(error)) from None


def _answer(place: Place) -> dict[str, Any]:
    # What waits in the timer has no offset yet.
    offset = place.offset if place.offset >= 0 else None
    answer = {"partition": place.partition, "offset": offset, "duplicate": place.is_duplicate}
    return answer | ({"deliver_at": place.due_ms, "timer": place.timer} if place.timer else {})
