"""A queue with a filter, made before its consumer comes: what it should not see must not come in between."""

from __future__ import annotations

from headrace.sdk import Unsuited
from headrace.sdk.queue_settings import make_queue
from headrace.sdk.system import HEADRACE, parse
from headrace.webhooks.hook import Hook


async def prepare(url: str, topic: str, hook: Hook) -> None:
    """Make the queue of a hook with its filter, or give it to the queue that there is. Raises Unsuited."""
    address = parse(url)
    if address.kind != HEADRACE:
        raise Unsuited(f"{url} has no queues that filter: leave the filter out, or use a headrace:// broker")
    await make_queue(address, topic, hook.group, {"filter": hook.filter}, replay=not hook.from_now)
