"""The kernels of the queue twice, compiled and interpreted, and batches with everything a log can hold."""

from __future__ import annotations

import importlib
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

from tests.kernels.conftest import interpreted

from headrace.format import records

BASE = struct.Struct(">q")


@dataclass(frozen=True)
class Build:
    """One build of the kernels that work together."""

    ledger: ModuleType
    delivery: ModuleType


def _interpreted() -> Build:
    """From the sources, which must find each other and not the compiled ones."""
    names = ["headrace.format.records", "headrace.broker.queues.ledger", "headrace.broker.queues.delivery"]
    before = {name: importlib.import_module(name) for name in names}
    try:
        for name in names:
            sys.modules[name] = interpreted(name.removeprefix("headrace."))
        return Build(sys.modules[names[1]], sys.modules[names[2]])
    finally:
        sys.modules.update(before)


COMPILED = Build(
    importlib.import_module("headrace.broker.queues.ledger"), importlib.import_module("headrace.broker.queues.delivery")
)
INTERPRETED = _interpreted()


Message = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]


def batch_at(base: int, messages: Sequence[Message], codec: int = 0, keep: Sequence[bool] = ()) -> bytes:
    """A batch at its offset; of its messages, those that a compaction kept."""
    made = records.build([(1_000, *message) for message in messages], compression=codec)
    if keep:
        made = bytearray(records.retain(bytes(made), bytes(keep), 1 << 24, None) or records.empty(bytes(made)))
    BASE.pack_into(made, 0, base)
    return bytes(made)


def control_at(base: int) -> bytes:
    """A marker of a transaction."""
    made = records.control(records.COMMIT, 0, 1, 0, 1_000)
    BASE.pack_into(made, 0, base)
    return bytes(made)
