"""Changes of the broker's own state as record batches: as many as the bound on a batch asks for, one behind the other,
which the log appends together or not at all."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.format import records

# One batch is about this large at most, far below what a topic takes.
BATCH_BYTES = 524_288
# What a record takes beside its key and value, generously.
RECORD_BYTES = 40

# A key and its value; None: the key is no more.
Change = tuple[bytes, bytes | None]


def batches_of(
    changes: Sequence[Change], now_ms: int, producer_id: int = -1, producer_epoch: int = -1, attributes: int = 0
) -> bytearray:
    """Batches of changes in their order."""
    out = bytearray()
    part: list[tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]] = []
    size = 0
    for key, value in changes:
        more = len(key) + len(value or b"") + RECORD_BYTES
        if part and size + more > BATCH_BYTES:
            out += records.build(part, producer_id=producer_id, producer_epoch=producer_epoch, attributes=attributes)
            part, size = [], 0
        part.append((now_ms, key, value, []))
        size += more
    if part:
        out += records.build(part, producer_id=producer_id, producer_epoch=producer_epoch, attributes=attributes)
    return out
