"""Messages that are committed together, and the parts into which they can be divided.

A chunk is one transaction as long as all goes well. When what one of its messages sends is refused for good, it must be
parted, and a part may only move a group's offsets over messages that are done. So it falls into *blocks*: a message, or
those that one call of a handler got, with what was sent for them, in the order in which they came. Where calls
have mixed messages that came one after the other, their blocks are one.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from confluent_kafka import TopicPartition

from headrace.sdk.message import Message, Outgoing

Place = tuple[str, int]


@dataclass(slots=True)
class Block:
    """Messages that can only be done together, and what goes with them."""

    messages: list[Message]
    sent: list[Outgoing]
    tries: int = 0
    """How often what is sent was refused, while nothing else was sent with it."""
    buried: bool = False
    """What is sent are its dead letters."""
    due: float = 0.0
    """It is not tried before then, of the monotonic clock."""

    def places(self) -> set[Place]:
        return {(each.topic, each.partition) for each in self.messages}


def positions(blocks: Iterable[Block]) -> list[TopicPartition]:
    """Where to read on behind them."""
    last: dict[Place, int] = {}
    for message in (message for block in blocks for message in block.messages):
        place = (message.topic, message.partition)
        last[place] = max(last.get(place, 0), message.offset + 1)
    return [TopicPartition(topic, index, offset) for (topic, index), offset in last.items()]


class Chunk:
    """Messages that are done together."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self.done = threading.Event()
        self.given_up = False
        """What was its is read again, here or elsewhere."""
        self._open = len(messages)
        # Where each partition of it begins, and in which order all came: in that, no partition goes back.
        self._first: dict[Place, int] = {}
        self._order: dict[tuple[str, int, int], int] = {}
        for each in messages:
            self._first.setdefault((each.topic, each.partition), each.offset)
            self._order[each.topic, each.partition, each.offset] = len(self._order)
        self._settled: list[Block] = []

    def settle(self, messages: Sequence[Message], sent: Iterable[Outgoing]) -> None:
        """These are through, together; on the loop."""
        self._settled.append(Block(list(messages), list(sent)))
        self._open -= len(messages)
        if not self._open:
            self.done.set()

    def first(self) -> dict[Place, int]:
        """Where to read again what of it is not done for good."""
        return dict(self._first)

    def finish(self, blocks: Sequence[Block]) -> None:
        """They are done for good."""
        done = {id(message) for block in blocks for message in block.messages}
        self._settled = [each for each in self._settled if id(each.messages[0]) not in done]
        for each in positions(blocks):
            self._first[each.topic, each.partition] = each.offset

    def whole(self) -> Block:
        """All of it that is not done for good, as one."""
        return _join(self._settled)

    def part(self) -> None:
        """Let it fall into blocks."""
        found: list[list[Block]] = []
        reached = -1
        for block in sorted(self._settled, key=lambda each: self._came(each)[0]):
            first, last = self._came(block)
            if first < reached:
                found[-1].append(block)
            else:
                found.append([block])
            reached = max(reached, last)
        self._settled = [each[0] if len(each) == 1 else _join(each) for each in found]

    @property
    def left(self) -> Sequence[Block]:
        """The blocks that are not done for good, in an order in which they can be parted anywhere."""
        return self._settled

    def free(self, now: float) -> list[list[Block]]:
        """Those that need not wait, in parts to be tried one after the other: one that was refused is by itself. Behind
        one that waits, all of its partitions wait."""
        held: set[Place] = set()
        parts: list[list[Block]] = []
        alone = True
        for block in self._settled:
            if block.due > now or not held.isdisjoint(block.places()):
                held |= block.places()
                continue
            if alone or block.tries:
                parts.append([])
            parts[-1].append(block)
            alone = block.tries > 0
        return parts

    def _came(self, block: Block) -> tuple[int, int]:
        """The first and the last of it in the order in which all came."""
        places = [self._order[each.topic, each.partition, each.offset] for each in block.messages]
        return min(places), max(places)


def _join(blocks: Sequence[Block]) -> Block:
    return Block([each for one in blocks for each in one.messages], [each for one in blocks for each in one.sent])
