"""Messages in requests: keys, values and headers, which are bytes, in JSON, which has none."""

from __future__ import annotations

import json
from base64 import b64decode
from typing import Any

from headrace.doors.http.api.answers import Fields, bad


def bytes_of(fields: Fields, name: str) -> bytes | None:
    """Bytes as text, or in Base64 under the name with `_base64`; None where there is neither."""
    text, packed = fields.take(name), fields.take(name + "_base64")
    if text is not None and packed is not None:
        raise bad(f"{name} and {name}_base64 are both given: one of them is enough")
    if text is not None:
        if not isinstance(text, str):
            raise bad(f"{name} is {text!r} where a text is wanted; what is not text goes into {name}_base64")
        return text.encode("utf-8", "surrogatepass")
    if packed is None:
        return None
    if not isinstance(packed, str):
        raise bad(f"{name}_base64 is {packed!r} where a text is wanted")
    try:
        return b64decode(packed, validate=True)
    except ValueError as error:
        raise bad(f"{name}_base64 is not Base64: {error}") from None


def value_of(message: Fields) -> bytes | None:
    """The value of a message: bytes, or any JSON under `value_json`; None where it has none."""
    plain, given = bytes_of(message, "value"), message.take("value_json")
    if given is None:
        return plain
    if plain is not None:
        raise bad("value_json stands beside another value: one of them is enough")
    return json_of("value_json", given)


def json_of(name: str, given: Any) -> bytes:
    """The JSON of a field that may be anything."""
    try:
        return json.dumps(given, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        raise bad(f"{name} has no form in JSON: {error}") from None


def headers_of(message: Fields) -> list[tuple[str, bytes | None]]:
    """The headers of a message, in their order; none where it has no such field."""
    given = message.take("headers", [])
    if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
        raise bad('headers is a list of objects, as in [{"name": "trace", "value": "7"}]')
    headers = []
    for each in given:
        fields = Fields(each)
        name = fields.text("name")
        if not name:
            raise bad("a header needs a name")
        try:
            name.encode()
        except UnicodeEncodeError:
            raise bad(f"a header's name is {name!r}, which has no form in UTF-8") from None
        headers.append((name, bytes_of(fields, "value")))
        fields.end()
    return headers
