"""JSON in and out: what the routes under `/v1` share.

An answer is an object. What goes wrong is one too, `{"error": CODE, "message": SENTENCE}`, under a status that says
whose fault it was: the code is for programs (an error class of `headrace.errors`, or one of this door's), the sentence
for people. A request's fields are taken one by one, each with its type; one that nobody took is refused, because a
misspelt field that is silently ignored is worse than an error.
"""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import Mapping
from typing import Any

from headrace.doors.http.server.messages import Response
from headrace.errors import (
    AppendRefused,
    BatchTooLarge,
    HalfDecided,
    HeadraceError,
    InvalidHalf,
    InvalidPartitions,
    InvalidQueue,
    InvalidQueueSetting,
    InvalidRecords,
    InvalidTopic,
    PartitionOffline,
    UnknownHalf,
    UnknownQueue,
    UnknownTopic,
)

JSON = "application/json"
# About how large a list becomes before it is cut, in characters of JSON, and after how many others get a turn.
PAGE_BYTES = 4_194_304
PAGE_STEP_BYTES = 262_144

# The first class that fits counts.
STATUSES: tuple[tuple[type[HeadraceError], int], ...] = (
    (UnknownTopic, 404),
    (UnknownQueue, 404),
    (InvalidTopic, 400),
    (InvalidPartitions, 400),
    (InvalidQueue, 400),
    (InvalidQueueSetting, 400),
    (UnknownHalf, 404),
    (InvalidHalf, 400),
    (HalfDecided, 409),
    (BatchTooLarge, 413),
    (InvalidRecords, 400),
    (AppendRefused, 503),
    (PartitionOffline, 503),
)
# What never reached a handler, by its status.
CODES = {
    403: "ForeignOrigin",
    408: "RequestTimeout",
    413: "RequestTooLarge",
    421: "ForeignHost",
    431: "HeadTooLarge",
    500: "Failed",
    501: "NotImplemented",
    507: "AnswerTooLarge",
}


class Refused(Exception):
    """The request cannot be answered as it wishes."""

    def __init__(self, status: int, code: str, message: str, headers: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.headers = headers


def found(value: Mapping[str, Any], status: int = 200) -> Response:
    """An answer."""
    return Response(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace") + b"\n", JSON, status)


class Page:
    """A list that is cut where an answer would become too large. It becomes JSON item by item, with turns of the loop
    between, because what is small in memory may be large in JSON: a byte can take six."""

    def __init__(self) -> None:
        self.items: list[str] = []
        self._size = 0
        self._paused_at = 0

    def add(self, item: Mapping[str, Any]) -> bool:
        """Add an item, if there is room for it."""
        text = json.dumps(item, ensure_ascii=False)
        if self._size + len(text) > PAGE_BYTES:
            return False
        self.items.append(text)
        self._size += len(text)
        return True

    async def pause(self) -> None:
        """Let others have a turn, now and then."""
        if self._size - self._paused_at >= PAGE_STEP_BYTES:
            self._paused_at = self._size
            await asyncio.sleep(0)

    def found(self, name: str, rest: Mapping[str, Any]) -> Response:
        """The answer: the items under a name, and what else there is to say."""
        body = f'{{"{name}": [{", ".join(self.items)}], {json.dumps(rest)[1:]}\n'
        return Response(body.encode("utf-8", "replace"), JSON)


def failed(status: int, code: str, message: str, headers: tuple[tuple[str, str], ...] = ()) -> Response:
    """An error."""
    body = json.dumps({"error": code, "message": message}, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
    return Response(body, JSON, status, headers)


def refusal(status: int, reason: str) -> Response:
    """The answer to what never reached a handler, or failed in one."""
    return failed(status, CODES.get(status, "BadRequest"), reason)


def response_to(error: Exception) -> Response:
    """The answer to what a handler raised on purpose; raises what was not."""
    if isinstance(error, Refused):
        return failed(error.status, error.code, str(error), error.headers)
    if isinstance(error, HeadraceError):
        status = next((status for kind, status in STATUSES if isinstance(error, kind)), 500)
        return failed(status, error.code, str(error))
    raise error


def put_bytes(said: dict[str, Any], name: str, content: bytes | None, most: int | None = None) -> None:
    """Put bytes into an object: as text where they are UTF-8, and under the name with `_base64` where not. Of more than
    `most` only the first are shown, and how many there are."""
    if content is None:
        said[name] = None
        return
    if most is not None and len(content) > most:
        said[name + "_bytes"] = len(content)
        content = content[:most]
    try:
        said[name] = content.decode()
    except UnicodeDecodeError:
        said[name + "_base64"] = b64encode(content).decode()


def bad(message: str) -> Refused:
    return Refused(400, "BadRequest", message)


class Fields:
    """The fields of a request, from its query (all texts) or its body, taken one by one."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._given = given
        self._known: dict[str, None] = {}

    @classmethod
    def of_body(cls, body: bytes) -> Fields:
        """The fields of a JSON object; none where there is no body."""
        if not body.strip():
            return cls({})
        try:
            given = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise bad(f"the body is not JSON: {error}") from None
        if not isinstance(given, dict):
            raise bad(f"the body is a JSON {_kind(given)} where an object is wanted")
        return cls(given)

    def take(self, name: str, default: Any = None) -> Any:
        """A field of any type."""
        self._known[name] = None
        value = self._given.get(name)
        return default if value is None else value

    def text(self, name: str, default: str = "") -> str:
        value = self.take(name, default)
        if not isinstance(value, str):
            raise bad(f"{name} is a {_kind(value)} where a text is wanted")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.take(name, default)
        if not isinstance(value, bool):
            raise bad(f"{name} is a {_kind(value)} where true or false is wanted")
        return value

    def number(self, name: str, default: int, least: int = 0, most: int = (1 << 63) - 1) -> int:
        """A whole number, in a query as text."""
        value = self.take(name, default)
        if isinstance(value, str) and value.isascii() and value.removeprefix("-").isdigit() and len(value) < 20:
            value = int(value)
        if type(value) is not int:
            raise bad(f"{name} is {value!r} where a whole number is wanted")
        if not least <= value <= most:
            raise bad(f"{name} is {value}: it must be {least} to {most}")
        return value

    def object(self, name: str) -> Mapping[str, Any]:
        value = self.take(name, {})
        if not isinstance(value, dict):
            raise bad(f"{name} is a {_kind(value)} where an object is wanted")
        return value

    def end(self) -> None:
        """Refuse what nobody took."""
        for name in self._given:
            if name not in self._known:
                known = ", ".join(self._known) or "none"
                raise bad(f"there is no field {name!r} here; those known are: {known}")


def _kind(value: Any) -> str:
    kinds = {dict: "object", list: "array", str: "text", bool: "boolean", type(None): "null"}
    return kinds.get(type(value), "number")
