"""A queue with a filter, made before its consumer comes: what it should not see must not come in between."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import Request, urlopen

from headrace.client import BrokerError, Client
from headrace.sdk import Unsuited
from headrace.sdk.system import HEADRACE, context_of, parse
from headrace.webhooks.hook import Hook

SECONDS = 10.0


async def prepare(url: str, topic: str, hook: Hook) -> None:
    """Make the queue of a hook with its filter, or give it to the queue that there is. Raises Unsuited."""
    address = parse(url)
    if address.kind != HEADRACE:
        raise Unsuited(f"{url} has no queues that filter: leave the filter out, or use a headrace:// broker")
    async with Client(address.kafka, tls=context_of(address)) as client:
        try:
            await client.admin.create_topic(topic)
        except BrokerError as error:
            if error.error.name != "topic_already_exists":
                raise
    path = f"http://{address.http}/v1/topics/{quote(topic, safe='')}/queues/{quote(hook.group, safe='')}"
    settings = {"settings": {"filter": hook.filter}}
    start = "latest" if hook.from_now else "earliest"
    made, _ = await asyncio.to_thread(_ask, "PUT", path, {"from": start, **settings})
    if not made:
        done, why = await asyncio.to_thread(_ask, "PATCH", path, settings)
        if not done:
            raise Unsuited(f"the queue {hook.group!r} of {topic!r} cannot be given its filter: {why}")


def _ask(method: str, url: str, content: dict[str, Any]) -> tuple[bool, str]:
    request = Request(url, json.dumps(content).encode(), {"Content-Type": "application/json"}, method=method)
    try:
        with urlopen(request, timeout=SECONDS) as answer:
            return True, answer.read().decode()
    except HTTPError as error:
        said = error.read().decode(errors="replace")
        try:
            return False, str(json.loads(said)["message"])
        except (ValueError, KeyError, TypeError):
            return False, said
    except URLError as error:
        raise Unsuited(f"queues are set over Headrace's HTTP door, and {url} does not answer: {error.reason}") from None
