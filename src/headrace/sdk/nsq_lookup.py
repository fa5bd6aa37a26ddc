"""A subscription to every nsqd that has the topic, as nsqlookupd knows them.

It polls all lookup services, and connects to every nsqd that one of them names. An nsqd that none of them names any
more is dropped once its connection is lost, and not before: a lookup service that has just started knows no nsqd yet.
The credit is divided among the connections.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlencode

import structlog

from headrace.sdk.http_door import ask
from headrace.sdk.nsq import NsqReceiver, NsqTransport
from headrace.sdk.scenario import Tuning
from headrace.sdk.system import Unsuited
from headrace.sdk.transport import ConsumerConfig, Deliver, Receiver

log = structlog.get_logger("headrace.sdk")

POLL_SECONDS = 15.0
# While no nsqd with the topic is known.
POLL_EAGERLY_SECONDS = 1.0
JITTER = 0.3
ANSWER_SECONDS = 5.0
TOPIC_NOT_FOUND = 404


class LookupReceiver(Receiver):
    """One subscription, over as many connections as there are nsqds."""

    def __init__(
        self, transport: NsqTransport, lookups: Sequence[str], config: ConsumerConfig, channel: str, deliver: Deliver
    ) -> None:
        super().__init__(config, deliver)
        self._transport = transport
        self._lookups = lookups
        self._channel = channel
        self._credit = config.credit
        self._found: dict[str, NsqReceiver] = {}
        self._silent: set[str] = set()
        self._polling: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Raises Unsuited where no lookup service answers: a mistyped address fails now."""
        if not self.config.tuning.private:
            # So that an nsqd which has the topic later makes the channel with it, and none of its messages is missed.
            await self._everywhere("POST", "/channel/create", channel=self._channel)
        if not await self._poll():
            raise Unsuited(f"no nsqlookupd answers at {', '.join(self._lookups)}")
        self._polling = asyncio.get_running_loop().create_task(self._poll_on())

    def limit(self, credit: int) -> None:
        self._credit = credit
        share = max(credit // len(self._found), 1) if credit and self._found else 0
        for each in self._found.values():
            each.limit(share)

    async def set_retries(self, tuning: Tuning) -> None:
        await super().set_retries(tuning)
        # A copy: nsqds come and go meanwhile.
        for each in list(self._found.values()):
            await each.set_retries(tuning)

    async def close(self) -> None:
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.gather(self._polling, return_exceptions=True)
        await asyncio.gather(*(each.close() for each in self._found.values()))

    async def _poll_on(self) -> None:
        while True:
            seconds = POLL_SECONDS if self._found else POLL_EAGERLY_SECONDS
            await asyncio.sleep(seconds * random.uniform(1 - JITTER, 1))
            try:
                await self._poll()
            except Exception as error:
                # Whatever it is, nsqds come and go, and must be found.
                log.error("nsqds could not be looked for", topic=self.config.topic, exc_info=error)

    async def _poll(self) -> bool:
        """Connect to nsqds that are new, drop those that are gone; whether a lookup service answered."""
        answers = await self._everywhere("GET", "/lookup")
        named = {address for answer in answers for address in _addresses(answer)}
        for address in sorted(named - self._found.keys()):
            await self._add(address)
        if answers:
            for address in sorted(self._found.keys() - named):
                if not self._found[address].connected:
                    log.info("an nsqd is gone", topic=self.config.topic, nsqd=address)
                    await self._found.pop(address).close()
                    self.limit(self._credit)
        return bool(answers)

    async def _add(self, address: str) -> None:
        receiver = NsqReceiver(self._transport, self.config, self._channel, self._deliver)
        receiver.on_late = lambda message, operation: self.on_late(message, operation)
        # Until it has its share.
        receiver.limit(0)
        try:
            await receiver.open(address)
        except (OSError, TimeoutError, Unsuited) as error:
            log.warning("an nsqd cannot be subscribed to", topic=self.config.topic, nsqd=address, error=str(error))
            await receiver.close()
            return
        log.info("an nsqd was found", topic=self.config.topic, nsqd=address)
        self._found[address] = receiver
        self.limit(self._credit)

    async def _everywhere(self, method: str, path: str, **parameters: str) -> list[Any]:
        """The answers of those lookup services that answer."""
        query = urlencode({"topic": self.config.topic, **parameters})
        asked = [asyncio.to_thread(_lookup, method, f"http://{each}{path}?{query}") for each in self._lookups]
        answers = []
        for lookup, answer in zip(self._lookups, await asyncio.gather(*asked, return_exceptions=True), strict=True):
            if not isinstance(answer, BaseException):
                answers.append(answer)
                self._silent.discard(lookup)
            elif lookup not in self._silent:
                self._silent.add(lookup)
                log.warning("an nsqlookupd does not answer", lookup=lookup, error=str(answer))
        return answers


def _lookup(method: str, url: str) -> Any:
    """Raises OSError."""
    status, answer = ask(method, url, ANSWER_SECONDS)
    if status == TOPIC_NOT_FOUND or answer == "":
        return {}
    if status >= 300 or not isinstance(answer, dict):
        raise OSError(f"HTTP {status}: {answer}")
    return answer


def _addresses(answer: Any) -> Iterator[str]:
    """Of the nsqds in an answer; before 1.0 nsqlookupd put everything into an envelope."""
    found = answer.get("data", answer) if isinstance(answer, dict) else None
    for each in (found.get("producers") or ()) if isinstance(found, dict) else ():
        host, port = (each.get("broadcast_address"), each.get("tcp_port")) if isinstance(each, dict) else ("", 0)
        if isinstance(host, str) and isinstance(port, int) and host and port:
            yield f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
