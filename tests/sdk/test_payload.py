"""Values that are not what a handler wants, however they are not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from tests.sdk.in_memory import Held, InMemory, app, wire
from tests.waiting import SECONDS

from headrace.sdk.payload import BadPayload, decoder, field_of

__all__ = ["wire"]

DEEP = b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"


@dataclass
class Share:
    parts: int

    def __post_init__(self) -> None:
        self.size = 100 / self.parts


async def settled(held: list[Held]) -> None:
    async with asyncio.timeout(SECONDS):
        while not all(each.settled for each in held):
            await asyncio.sleep(0.001)


@pytest.mark.parametrize(("wanted", "raw"), [(Any, DEEP), (dict[str, Any], DEEP), (Share, b'{"parts":0}')])
def test_whatever_decoding_raises_is_a_bad_payload(wanted: Any, raw: bytes) -> None:
    with pytest.raises(BadPayload):
        decoder(wanted)(raw)


@pytest.mark.parametrize("raw", [DEEP, b'"text"', b"[1]", b"7", b"\xff"])
def test_what_is_no_object_has_no_fields(raw: bytes) -> None:
    assert field_of(raw, "title") is None


async def test_a_bad_payload_costs_no_worker(wire: InMemory) -> None:
    shop = app()
    seen: list[int] = []

    @shop.subscribe("shares", workers=1, ordered_by="name")
    async def handle(share: Share) -> None:
        seen.append(share.parts)

    async with shop:
        [receiver] = wire.receivers
        bad = receiver.bring(b'{"parts":0}', DEEP)
        good = receiver.bring(b'{"parts":4}')
        await settled(bad + good)
    assert [each.settled[0][0] for each in bad] == ["reject", "reject"]
    assert seen == [4]


async def test_what_fails_around_a_handler_costs_no_worker(wire: InMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = app()

    @shop.subscribe("shares", workers=1)
    async def handle(raw: bytes) -> None:
        pass

    async with shop:
        [running], [receiver] = shop.running, wire.receivers
        handling: Callable[..., Any] = running._handle
        monkeypatch.setattr(running, "_handle", None)
        [lost] = receiver.bring(b"a")
        async with asyncio.timeout(SECONDS):
            while running.waiting:
                await asyncio.sleep(0.001)
        monkeypatch.setattr(running, "_handle", handling)
        await settled(receiver.bring(b"b"))
    assert [settled[0] for settled in lost.settled] == ["retry"]
