"""A queue with a filter, made before its consumer comes: what it should not see must not come in between."""

from __future__ import annotations

from headrace.sdk import Unsuited
from headrace.sdk.nsq import NsqTransport
from headrace.sdk.system import HEADRACE, System
from headrace.webhooks.hook import Hook

NAME = "headrace-subscribe"


async def prepare(url: str, topic: str, hook: Hook) -> None:
    """Make the queue of a hook with its filter, or give it to the queue that there is. Raises Unsuited and
    PublishFailed."""
    system = System(url, NAME)
    if system.address.kind != HEADRACE:
        raise Unsuited(f"{url} has no queues that filter: leave the filter out, or use a headrace:// broker")
    if missing := system.nsq_missing():
        raise Unsuited(f"a queue needs the NSQ door: {missing}")
    transport = NsqTransport(system.address, NAME)
    await transport.open()
    try:
        await transport.make_queue(topic, hook.group, {"filter": hook.filter}, replay=not hook.from_now)
    finally:
        await transport.close()
