"""How far a query is behind, from Spark's own progress."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.pipeline.progress import count_waiting, metrics

DONE = {"events": {"0": 10, "1": 4}}
THERE = {"events": {"0": 10, "1": 10, "2": 3}}


@pytest.mark.parametrize("form", [lambda said: said, json.dumps])
@pytest.mark.parametrize("kind", [lambda **each: each, SimpleNamespace])
def test_the_metrics_of_sparks_own_source(form: Any, kind: Any) -> None:
    source = kind(endOffset=form(DONE), latestOffset=form(THERE))
    assert metrics(source) == {
        "avgOffsetsBehindLatest": "3.0",
        "maxOffsetsBehindLatest": "6",
        "minOffsetsBehindLatest": "0",
    }
    assert count_waiting(source) == 9
    before = kind(endOffset=None, latestOffset=None)
    assert (metrics(before), count_waiting(before)) == ({}, None)
    # A topic that was made anew ends before what was read.
    assert count_waiting(kind(endOffset=form(THERE), latestOffset=form(DONE))) == 0
