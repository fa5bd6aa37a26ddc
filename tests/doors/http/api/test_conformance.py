"""The HTTP door keeps what every door promises."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Sequence
from http.client import HTTPConnection, HTTPException
from typing import ClassVar
from urllib.parse import quote, urlencode

from tests.doors.adapter import Client, DoorRefused
from tests.doors.conformance import Conformance


class HttpClient(Client):
    """A connection that is kept alive."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self._connection = HTTPConnection(address, timeout=60)

    def publish(self, topic: str, value: bytes, *, delay_ms: int = 0, id: str | None = None) -> None:
        options = ({"delay": f"{delay_ms}ms"} if delay_ms else {}) | ({"dedup_id": id} if id else {})
        self._post(f"/topics/{quote(topic)}?{urlencode(options)}", value)

    def publish_all(self, topic: str, values: Sequence[bytes]) -> None:
        messages = [{"value_base64": b64encode(value).decode()} for value in values]
        self._post(f"/v1/topics/{quote(topic)}/messages", json.dumps({"messages": messages}).encode())

    def _post(self, path: str, body: bytes) -> None:
        try:
            self._connection.request("POST", path, body)
            response = self._connection.getresponse()
            answer = response.read()
        except HTTPException as error:
            raise ConnectionError(str(error)) from error
        if response.status != 200:
            raise DoorRefused(f"{response.status} {answer.decode()}")

    def close(self) -> None:
        self._connection.close()


class TestHttp(Conformance):
    door = "http"
    client = HttpClient
    errors: ClassVar = {
        "not allowed": "401 .*Unauthenticated",
        "full": "503 .*TopicFull",
        "too large": "413 .*BatchTooLarge",
        "bad name": "400 .*InvalidTopic",
        "own topic": "400 .*InvalidTopic",
    }
    lacks: ClassVar = {
        "partitions": "a request is one append",
        "queues": "it manages queues and does not consume them",
        "idle": "a silent client has http_request_ms, not connections_idle_ms",
    }
    hello = b"POST /topics/t HTTP/1.1\r\nHost: localhost\r\n"

    def greedy(self, topic: str) -> bytes:
        return f"GET /v1/topics/{topic}/queues/q/peek HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() * 50
