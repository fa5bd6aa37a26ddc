"""Messages that a Kafka consumer got together, kept together.

A handler of lists gets them as one: neither a message nor a delivery is made of each, and all of them are settled in
one step. A batch whose deliveries are looked at one by one is settled one by one from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any, overload

from headrace.sdk.message import NO_HEADERS, Message
from headrace.sdk.transport import Delivery

if TYPE_CHECKING:
    from headrace.sdk.puller import Puller, Track

# A partition, its first message's offset, how many offsets follow one another from there, and the place of the first
# among the others.
Run = tuple[int, int, int, int]
# A partition, and the offsets from the first up to, but not with, the last.
Span = tuple[int, int, int]


# Makes a delivery of one message, which is open from its offset.
Single = Callable[["Puller", Any, "Track"], Delivery]


class FetchedBatch(Sequence[Delivery]):
    """Messages of one consumer, in the order in which they came."""

    def __init__(self, puller: Puller, raws: list[Any], single: Single) -> None:
        self._puller = puller
        self._single = single
        self._each: list[Delivery] | None = None
        self.raws = raws
        # What is open of each partition: where it begins and ends, and how many messages that are.
        self._open: list[tuple[Track, int, int, int]] = [
            (puller.begin(partition, first), first, end, count) for partition, first, end, count in _spans(raws)
        ]

    def __len__(self) -> int:
        return len(self.raws)

    @overload
    def __getitem__(self, index: int) -> Delivery: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Delivery]: ...
    def __getitem__(self, index: int | slice) -> Delivery | Sequence[Delivery]:
        return self._one_by_one()[index]

    def __iter__(self) -> Iterator[Delivery]:
        return iter(self._one_by_one())

    @property
    def whole(self) -> bool:
        """Whether it can still be settled in one step."""
        return self._each is None

    @property
    def messages(self) -> FetchedMessages:
        return FetchedMessages(self.raws)

    def values(self) -> list[bytes]:
        return [raw.value() or b"" for raw in self.raws]

    def spans(self) -> list[Span]:
        """The offsets of a whole batch."""
        return [(track.partition, first, end) for track, first, end, _ in self._open]

    def touch(self) -> bool:
        """Drop those whose partition was revoked; whether any are left."""
        if self._each is None and all(self._puller.holds(track) for track, *_ in self._open):
            return True
        kept = [
            (raw, delivery) for raw, delivery in zip(self.raws, self._one_by_one(), strict=True) if delivery.touch()
        ]
        self.raws, self._each = [raw for raw, _ in kept], [delivery for _, delivery in kept]
        return bool(kept)

    def ack(self) -> None:
        """All of them are done."""
        if self._each is not None:
            for delivery in self._each:
                delivery.ack()
            return
        opened, self._open = self._open, []
        for track, first, end, count in opened:
            self._puller.settle(track, first, end, count)

    def join(self, others: Iterable[FetchedBatch]) -> FetchedBatch:
        """This batch with others behind it, which must not be used any more."""
        for other in others:
            self.raws = self.raws + other.raws
            self._open += other._open
        return self

    def _one_by_one(self) -> list[Delivery]:
        if self._each is None:
            tracks = {track.partition: track for track, *_ in self._open}
            begun = {(track.partition, first) for track, first, *_ in self._open}
            self._open = []
            self._each = []
            for raw in self.raws:
                track = tracks[raw.partition()]
                if (track.partition, raw.offset()) not in begun:
                    track.begin(raw.offset())
                self._each.append(self._single(self._puller, raw, track))
        return self._each


class FetchedMessages(Sequence[Message]):
    """The messages of a batch, made when they are read."""

    def __init__(self, raws: list[Any]) -> None:
        self._raws = raws

    def __len__(self) -> int:
        return len(self._raws)

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | Sequence[Message]:
        return FetchedMessages(self._raws[index]) if isinstance(index, slice) else message_of(self._raws[index])

    def __iter__(self) -> Iterator[Message]:
        return map(message_of, self._raws)

    @property
    def topic(self) -> str:
        return str(self._raws[0].topic())

    def runs(self) -> list[Run]:
        """Their offsets, as runs."""
        found: list[Run] = []
        at = 0
        for partition, group in groupby([raw.partition() for raw in self._raws]):
            size = len(list(group))
            first, last = self._raws[at].offset(), self._raws[at + size - 1].offset()
            if last - first == size - 1:
                found.append((partition, first, size, at))
            else:
                # Offsets are missing between them: messages that were compacted away, or ends of transactions.
                found += [(partition, raw.offset(), 1, at + i) for i, raw in enumerate(self._raws[at : at + size])]
            at += size
        return found


def message_of(raw: Any) -> Message:
    """A message as the library gives it."""
    headers = raw.headers()
    read = {name: value or b"" for name, value in headers} if headers else NO_HEADERS
    return Message(raw.topic(), raw.value() or b"", raw.key(), read, raw.partition(), raw.offset(), raw.timestamp()[1])


def overlap(some: Iterable[Span], others: Sequence[Span]) -> bool:
    """Whether a message can be in both."""
    return any(one[0] == other[0] and one[1] < other[2] and other[1] < one[2] for one in some for other in others)


def join_parts(parts: list[Sequence[Delivery]]) -> Sequence[Delivery]:
    """Several as one; whole batches stay whole."""
    if len(parts) == 1:
        return parts[0]
    whole = [each for each in parts if isinstance(each, FetchedBatch) and each.whole]
    if len(whole) == len(parts):
        return whole[0].join(whole[1:])
    return list(chain.from_iterable(parts))


def _spans(raws: list[Any]) -> list[tuple[int, int, int, int]]:
    """Each partition's part: the partition, where it begins and ends, and how many messages that are."""
    partitions = [raw.partition() for raw in raws]
    if partitions.count(partitions[0]) == len(raws):
        return [(partitions[0], raws[0].offset(), raws[-1].offset() + 1, len(raws))]
    found = []
    for partition in dict.fromkeys(partitions):
        first = partitions.index(partition)
        last = len(raws) - 1 - partitions[::-1].index(partition)
        found.append((partition, raws[first].offset(), raws[last].offset() + 1, partitions.count(partition)))
    return found
