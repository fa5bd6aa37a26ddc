"""A client of etcd's JSON gateway that hides nothing: one connection a request, the status and the JSON lines."""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator
from typing import Any

PORT = 2379


def encode(text: str) -> str:
    return b64encode(text.encode()).decode()


def decode(text: str) -> str:
    return b64decode(text).decode()


async def send(host: str, path: str, body: dict[str, Any]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(host, PORT)
    content = json.dumps(body).encode()
    writer.write(f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content)
    return reader, writer


async def post(host: str, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """The status and the answer. Raises ConnectionError, or waits for ever."""
    reader, writer = await send(host, path, body)
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        return int(head.split()[1]), json.loads(await reader.readexactly(length))
    except asyncio.IncompleteReadError:
        raise ConnectionResetError("the connection ended before the answer") from None
    finally:
        writer.close()


async def watch(host: str, key: str, **options: Any) -> AsyncIterator[dict[str, Any]]:
    """What a watch gives, as it comes."""
    reader, writer = await send(host, "/v3/watch", {"create_request": {"key": encode(key), **options}})
    try:
        await reader.readuntil(b"\r\n\r\n")
        while size := int(await reader.readline(), 16):
            yield json.loads(await reader.readexactly(size))["result"]
            await reader.readexactly(2)
    finally:
        writer.close()
