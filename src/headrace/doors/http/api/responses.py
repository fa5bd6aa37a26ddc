"""Answers in JSON: an object, or a list that is cut where an answer would become too large."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from typing import Any

from headrace.doors.http.server.messages import Headers, Response

JSON = "application/json"
# About how large a list becomes before it is cut, in characters of JSON, and after how many others get a turn.
PAGE_BYTES = 4_194_304
PAGE_STEP_BYTES = 16_384


Names = Mapping[str, str]
"""What the names in a route's path stand for."""
Answer = Mapping[str, Any] | Response
"""What a handler returns: an object, or a whole response."""


def json_response(value: Mapping[str, Any], status: int = 200, headers: Headers = ()) -> Response:
    body = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
    return Response(body, JSON, status, headers)


class Page:
    """A list that is cut where an answer would become too large. It becomes JSON item by item, with turns of the loop
    between, because what is small in memory may be large in JSON: a byte can take six."""

    def __init__(self) -> None:
        self.items: list[bytes] = []
        self._size = 0
        self._paused_at = 0

    def add(self, item: Mapping[str, Any]) -> bool:
        """Add an item, if there is room for it."""
        text = json.dumps(item, ensure_ascii=False)
        if self._size + len(text) > PAGE_BYTES:
            return False
        self.items.append(text.encode("utf-8", "replace"))
        self._size += len(text)
        return True

    async def fill(self, items: Iterable[Mapping[str, Any]]) -> Page:
        """Add items, as far as there is room."""
        for item in items:
            if not self.add(item):
                break
            await self.pause()
        return self

    async def pause(self) -> None:
        """Let others have a turn, now and then."""
        if self._size - self._paused_at >= PAGE_STEP_BYTES:
            self._paused_at = self._size
            await asyncio.sleep(0)

    def response(self, name: str, rest: Mapping[str, Any], status: int = 200) -> Response:
        """The answer: the items under a name, and what else belongs to it."""
        head, tail = f'{{"{name}": ['.encode(), json.dumps(rest)[1:].encode()
        return Response(b"".join((head, b", ".join(self.items), b"], ", tail, b"\n")), JSON, status)
