"""Keys in memory behind etcd's paths, and a thread that serves them: for commands, which run loops of their own."""

from __future__ import annotations

import asyncio
import threading
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.cluster.scripted import Scripted, encode, header


class Store:
    """Answers to ranges and swaps."""

    def __init__(self) -> None:
        self.revision = 1
        self.keys: dict[str, tuple[str, int]] = {}
        """Values and revisions."""
        self.lost = 0
        """So many swaps are carried out, and their answers are lost."""

    def put(self, key: str, value: bytes) -> None:
        self.revision += 1
        self.keys[key] = (value.decode(), self.revision)

    def delete(self, key: str) -> None:
        del self.keys[key]

    def answer(self, path: str, body: dict[str, Any]) -> object:
        if path == "/v3/kv/range":
            return {"header": header(self.revision), **self._range(body)}
        assert path == "/v3/kv/txn"
        [compared], [change] = body["compare"], body["success"]
        key = b64decode(compared["key"]).decode()
        _, revision = self.keys.get(key, ("", 0))
        if revision != int(compared["mod_revision"]):
            found = self._range(body["failure"][0]["request_range"])
            return {"header": header(self.revision), "responses": [{"response_range": found}]}
        self.put(key, b64decode(change["request_put"]["value"]))
        if self.lost:
            self.lost -= 1
            return (503, {"code": 14, "message": "etcdserver: request timed out"})
        return {"header": header(self.revision), "succeeded": True}

    def _range(self, asked: dict[str, str]) -> dict[str, Any]:
        first = b64decode(asked["key"]).decode()
        end = b64decode(asked.get("range_end", "")).decode() or first + "\0"
        found = [(key, entry) for key, entry in sorted(self.keys.items()) if first <= key < end]
        kvs = [{"key": encode(key), "value": encode(value), "mod_revision": str(at)} for key, (value, at) in found]
        return {"kvs": kvs} if kvs else {}


@contextmanager
def serving(store: Store) -> Iterator[str]:
    """Serve from another thread; where."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    server = Scripted(store.answer)
    asyncio.run_coroutine_threadsafe(server.start(), loop).result()
    yield f"127.0.0.1:{server.address[1]}"

    async def stop() -> None:
        server.stop()
        await asyncio.sleep(0)

    asyncio.run_coroutine_threadsafe(stop(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
