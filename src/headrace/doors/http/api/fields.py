"""The fields of a request, taken one by one, each with its type.

A field that no handler took is refused: a misspelt one that is silently ignored is worse than an error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from headrace.doors.http.api.errors import bad_request
from headrace.doors.http.server.messages import Request


class Fields:
    """The fields of a request, from its query (all texts) or its body, taken one by one."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._given = given
        self._known: dict[str, None] = {}

    @classmethod
    def of_query(cls, request: Request) -> Fields:
        """The parameters of the query, all texts."""
        return cls(request.parameters())

    @classmethod
    def of_body(cls, body: bytes) -> Fields:
        """The fields of a JSON object; none where there is no body."""
        try:
            given = json.loads(body) if body.strip() else {}
        except (ValueError, RecursionError) as error:
            raise bad_request(f"the body is not JSON: {error}") from None
        if not isinstance(given, dict):
            raise bad_request(f"the body must be a JSON object (got {_kind(given)})")
        return cls(given)

    def take(self, name: str, default: Any = None) -> Any:
        """A field of any type."""
        self._known[name] = None
        value = self._given.get(name)
        return default if value is None else value

    def _typed(self, name: str, default: Any, kind: type, words: str) -> Any:
        value = self.take(name, default)
        if not isinstance(value, kind):
            raise bad_request(f"{name} must be {words} (got {_kind(value)})")
        return value

    def text(self, name: str, default: str = "") -> str:
        return str(self._typed(name, default, str, "a text"))

    def flag(self, name: str) -> bool:
        return bool(self._typed(name, False, bool, "true or false"))

    def switch(self, name: str) -> bool:
        """true or false, as text in a query."""
        value = self.text(name, "false")
        if value not in ("true", "false"):
            raise bad_request(f"{name} must be true or false (got {value!r})")
        return value == "true"

    def object(self, name: str) -> Mapping[str, Any]:
        return dict(self._typed(name, {}, dict, "an object"))

    def number(self, name: str, default: int, least: int = 0, most: int = (1 << 63) - 1) -> int:
        """A whole number, in a query as text."""
        value = self.take(name, default)
        if isinstance(value, str) and value.isascii() and value.removeprefix("-").isdigit() and len(value) < 20:
            value = int(value)
        if type(value) is not int:
            raise bad_request(f"{name} must be a whole number (got {value!r})")
        if not least <= value <= most:
            raise bad_request(f"{name} must be {least} to {most} (got {value})")
        return value

    def end(self) -> None:
        """Refuse the fields that were not taken."""
        for name in self._given:
            if name not in self._known:
                known = ", ".join(self._known) or "none"
                raise bad_request(f"there is no field {name!r}. Known fields: {known}")


def _kind(value: Any) -> str:
    kinds = {dict: "object", list: "array", str: "text", bool: "boolean", type(None): "null"}
    return kinds.get(type(value), "number")
