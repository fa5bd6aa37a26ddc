from __future__ import annotations

import pytest

from headrace.broker import batching
from headrace.broker.batching import batches_of
from headrace.format import records
from headrace.format.batch import batches_in


def test_changes_stand_in_their_order_in_bounded_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "BATCH_BYTES", 1_000)
    changes = [(b"k%d" % number, None if number % 7 == 0 else b"v" * (number % 300)) for number in range(200)]
    raw = batches_of(changes, 5)
    found = [(at, header) for at, header in batches_in(raw)]
    assert sum(header.size for _, header in found) == len(raw)
    assert max(header.size for _, header in found) <= 1_000 + 61
    records_of = [records.parse(bytes(raw[at : at + header.size]), 1 << 20) for at, header in found]
    assert [(key, value) for part in records_of for _, _, key, value, _ in part] == changes


def test_a_change_above_the_bound_has_a_batch_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "BATCH_BYTES", 1_000)
    raw = batches_of([(b"a", b""), (b"b", b"v" * 5_000), (b"c", b"")], 5)
    assert [header.record_count for _, header in batches_in(raw)] == [1, 1, 1]
    assert batches_of([], 5) == b""
