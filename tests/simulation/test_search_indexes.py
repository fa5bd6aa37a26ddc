"""Search indexes in the simulator: where the checks of an index are switched off, a flipped bit in one leaves a message
out of an answer."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest
from tests.simulation.campaigns import caught

from headrace.log import search_index
from headrace.log.search_index import PAGE_BYTES, PAGE_ENTRIES, Block
from headrace.runtime.disk import File
from simulation.log.campaign import LogCampaign
from simulation.machine import Machine

SEEDS = 60


def believe_pages(patch: pytest.MonkeyPatch) -> None:
    def page(self: search_index._Look, block: Block, page: int) -> tuple[int, ...]:
        count = min(PAGE_ENTRIES, block.entries - page * PAGE_ENTRIES)
        raw = self._file.read(block.pages_at + page * PAGE_BYTES, 4 + count * 8)
        return search_index.Struct(f">{count}Q").unpack_from(raw, 4)

    patch.setattr(search_index._Look, "_page", page)


def believe_heads(patch: pytest.MonkeyPatch) -> None:
    def blocks(file: File, at: int, size: int) -> Iterator[Block]:
        while size - at >= search_index.BLOCK_HEAD_BYTES:
            head = file.read(at, search_index.BLOCK_HEAD_BYTES)
            block = Block(at + search_index.BLOCK_HEAD_BYTES, *search_index._BLOCK.unpack_from(head)[1:])
            at = block.pages_at + block.pages_bytes
            if at > size:
                return
            yield block

    patch.setattr(search_index, "_blocks", blocks)


@pytest.mark.parametrize("switch_off", [believe_pages, believe_heads])
def test_damage_that_is_not_looked_for_is_missed(
    switch_off: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    flip = Machine.flip_bit

    def flip_in_an_index(self: Machine, wanted: object, rng: random.Random) -> tuple[str, int] | None:
        return flip(self, lambda path: path.endswith(".search"), rng)

    monkeypatch.setattr(Machine, "flip_bit", flip_in_an_index)
    switch_off(monkeypatch)
    caught(LogCampaign(), SEEDS)
