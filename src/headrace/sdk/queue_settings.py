"""Headrace's queues, made and set over its HTTP door."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import Request, urlopen

from headrace.client import BrokerError, Client
from headrace.sdk.system import Address, Unsuited, context_of

SECONDS = 10.0


async def make_queue(address: Address, topic: str, queue: str, settings: Mapping[str, Any], *, replay: bool) -> None:
    """A topic and a queue on it, with some settings; a queue that is there is given them. Raises Unsuited."""
    async with Client(address.kafka, tls=context_of(address)) as client:
        try:
            await client.admin.create_topic(topic)
        except BrokerError as error:
            if error.error.name != "topic_already_exists":
                raise
    wanted = {"from": "earliest" if replay else "latest", "settings": settings}
    made, _ = await _ask(address, "PUT", topic, queue, wanted)
    if not made:
        await set_queue(address, topic, queue, settings)


async def set_queue(address: Address, topic: str, queue: str, settings: Mapping[str, Any]) -> None:
    """Change a queue that is there. Raises Unsuited."""
    done, why = await _ask(address, "PATCH", topic, queue, {"settings": settings})
    if not done:
        raise Unsuited(f"the queue {queue!r} of {topic!r} cannot be set: {why}")


async def _ask(address: Address, method: str, topic: str, queue: str, content: Mapping[str, Any]) -> tuple[bool, str]:
    """Whether the door did as it was told, and what it said."""
    url = f"http://{address.http}/v1/topics/{quote(topic, safe='')}/queues/{quote(queue, safe='')}"
    request = Request(url, json.dumps(content).encode(), {"Content-Type": "application/json"}, method=method)

    def ask() -> tuple[bool, str]:
        try:
            with urlopen(request, timeout=SECONDS) as answer:
                return True, answer.read().decode()
        except HTTPError as error:
            return False, _sentence(error.read().decode(errors="replace"))
        except OSError as error:
            reason = error.reason if isinstance(error, URLError) else error
            raise Unsuited(
                f"queues are set over Headrace's HTTP door, and {address.http} does not answer "
                f"({reason}): give ?http=HOST:PORT in the URL"
            ) from None

    return await asyncio.to_thread(ask)


def _sentence(said: str) -> str:
    """The door's own sentence, without what is around it."""
    try:
        return str(json.loads(said)["message"])
    except (ValueError, KeyError, TypeError):
        return said
