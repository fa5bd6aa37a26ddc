"""Which queues there are, how far they are settled, and which of their messages they watch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

from headrace.errors import HeadraceError
from headrace.format.sampling import REDRIVEN, TRACEPARENT, is_kept, seed_of, threshold
from headrace.pipeline.jobs.audit_report import Watched
from headrace.pipeline.jobs.http_door import HttpDoor

if TYPE_CHECKING:
    import pyarrow as pa

KEY = "key"
# What a queue does for itself is no consumer's.
OWN_QUEUES = ("redrive",)


@dataclass(frozen=True)
class WatchedQueue:
    """A queue, or a consumer group, that is looked at."""

    watched: Watched
    settled: Mapping[int, int]
    """Per partition, the offset below which everything is done."""
    lost: int = 0
    """Messages that the log gave up before the queue was done with them, since it was made."""


def asked_over_http(door: HttpDoor, topics: Sequence[str]) -> list[WatchedQueue]:
    """The queues of the topics. Raises HeadraceError where the door does not answer, or refuses."""
    found = []
    for topic in topics:
        path = f"/v1/topics/{quote(topic, safe='')}/queues"
        for summary in door.get(path)["queues"]:
            if summary["queue"] in OWN_QUEUES:
                continue
            queue = door.get(f"{path}/{quote(summary['queue'], safe='')}")
            settings = queue["settings"]
            share = settings["deliveries"]
            settled = {each["partition"]: each["settled_below"] for each in queue["partitions"]}
            watched = Watched(topic, queue["queue"], share or None, bool(settings["filter"]))
            found.append(WatchedQueue(watched, settled, queue.get("lost", 0)))
    return found


def check_shares(shares: Mapping[str, float]) -> None:
    """Raises HeadraceError where a queue cannot watch such a share."""
    for queue, share in shares.items():
        if not 0 < share <= 1:
            raise HeadraceError(f"the queue {queue!r} cannot watch a share of {share}: it is above 0 and at most 1")


def watched_here(topics: Sequence[str], shares: Mapping[str, float]) -> list[WatchedQueue]:
    """Queues of which nothing is known but which share of their messages they watch."""
    check_shares(shares)
    return [
        WatchedQueue(Watched(topic, queue, share, placed=False), {})
        for topic in topics
        for queue, share in shares.items()
    ]


def mark_watched(block: pa.RecordBatch) -> pa.RecordBatch:
    """Of a block with the columns topic, partition, offset, share, and those by which messages are chosen, all but the
    last of these, and one more that says which messages have events. Messages that are judged by their queue's position
    (no share) are all of them looked at."""
    import pyarrow as pa

    by = (KEY, TRACEPARENT, REDRIVEN)
    seeds: dict[tuple[str, int], int] = {}
    marks = []
    names = ("topic", "partition", "offset", "share", *by)
    for topic, partition, offset, share, key, *headers in zip(
        *(block.column(name).to_pylist() for name in names), strict=True
    ):
        if share is None or share >= 1:
            marks.append(True)
            continue
        seed = seeds.get((topic, partition))
        if seed is None:
            seed = seeds[topic, partition] = seed_of(topic, partition)
        said = [(name, value) for name, value in zip(by[1:], headers, strict=True) if value is not None]
        marks.append(is_kept(offset, seed, threshold(share), key, said))
    return block.drop_columns(list(by)).append_column("watched", pa.array(marks, pa.bool_()))
