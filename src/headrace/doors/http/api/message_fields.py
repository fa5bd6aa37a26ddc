"""Messages in JSON, which has no bytes: keys, values and headers, in requests and in answers."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.doors.http.api.errors import bad_request
from headrace.doors.http.api.fields import Fields
from headrace.doors.http.api.schemas import Shape, array, bytes_fields, given_bytes, object_of, text
from headrace.doors.http.server.messages import HttpError

HEADER = object_of({"name": text()}, bytes_fields("value"))
MESSAGE_FIELDS: Mapping[str, Shape] = {
    **bytes_fields("key"),
    **bytes_fields("value"),
    "headers": array(HEADER, "In their order; names may repeat. Left out where there are none."),
}
"""A message in an answer."""
MESSAGE_BODY: Mapping[str, Shape] = {
    **given_bytes("key"),
    **given_bytes("value"),
    "headers": array(object_of({"name": text()}, given_bytes("value"))),
}
"""A message in a request."""

# The other clients wait while a request is taken apart: about a quarter of a second for so many.
MESSAGES_MAX = 10_000


def check_count(count: int) -> None:
    """Raise unless so many messages may come in one request."""
    if count > MESSAGES_MAX:
        raise HttpError(
            413, "TooManyMessages", f"a request has {MESSAGES_MAX} messages at most: send the others in another one"
        )


def bytes_of(fields: Fields, name: str) -> bytes | None:
    """Bytes as text, or in Base64 under the name with `_base64`; None where there is neither."""
    text, packed = fields.take(name), fields.take(name + "_base64")
    if text is not None and packed is not None:
        raise bad_request(f"{name} and {name}_base64 are both given. Give one of them.")
    if text is not None:
        if not isinstance(text, str):
            raise bad_request(f"{name} must be a text (got {text!r}). Send bytes in {name}_base64.")
        return text.encode("utf-8", "surrogatepass")
    if packed is None:
        return None
    if not isinstance(packed, str):
        raise bad_request(f"{name}_base64 must be a text (got {packed!r})")
    try:
        return b64decode(packed, validate=True)
    except ValueError as error:
        raise bad_request(f"{name}_base64 is not Base64: {error}") from None


def value_of(message: Fields) -> bytes | None:
    """The value of a message: bytes, or any JSON under `value_json`; None where it has none."""
    plain, given = bytes_of(message, "value"), message.take("value_json")
    if given is None:
        return plain
    if plain is not None:
        raise bad_request("value_json is given beside another value. Give one of them.")
    return json_of("value_json", given)


def json_of(name: str, given: Any) -> bytes:
    """The JSON of a field that may be anything."""
    try:
        return json.dumps(given, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        raise bad_request(f"{name} has no form in JSON: {error}") from None


def headers_of(message: Fields) -> list[tuple[str, bytes | None]]:
    """The headers of a message, in their order; none where it has no such field."""
    given = message.take("headers", [])
    if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
        raise bad_request('headers is a list of objects, as in [{"name": "trace", "value": "7"}]')
    headers = []
    for each in given:
        fields = Fields(each)
        name = fields.text("name")
        if not name:
            raise bad_request("a header needs a name")
        try:
            name.encode()
        except UnicodeEncodeError:
            raise bad_request(f"a header's name is {name!r}, which has no form in UTF-8") from None
        headers.append((name, bytes_of(fields, "value")))
        fields.end()
    return headers


def put_bytes(shown: dict[str, Any], name: str, content: bytes | None, most: int | None = None) -> None:
    """Put bytes into an object: as text where they are UTF-8, and under the name with `_base64` where not. Of more than
    `most` only the first are shown, and how many there are."""
    if content is None:
        shown[name] = None
        return
    if most is not None and len(content) > most:
        shown[name + "_bytes"] = len(content)
        content = content[:most]
    try:
        shown[name] = content.decode()
    except UnicodeDecodeError:
        shown[name + "_base64"] = b64encode(content).decode()


def put_message(
    shown: dict[str, Any], key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]]
) -> None:
    """Put a message into an object, with the headers if there are any."""
    put_bytes(shown, "key", key)
    put_bytes(shown, "value", value)
    if headers:
        shown["headers"] = [{"name": name} for name, _ in headers]
        for header, (_, content) in zip(shown["headers"], headers, strict=True):
            put_bytes(header, "value", content)
