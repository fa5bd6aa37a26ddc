"""How long the campaigns of `make long` are, and what of them comes with every run.

With what they say themselves all campaigns end within two hours on two cores; `LONGER=5 make long` makes each five
times as long. Where seeds or examples prove the same again and again, every run takes the first of them, and
`make long` all.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import settings

LONGER = int(os.environ.get("LONGER", "1"))


def seeds(usual: int, in_all: int) -> list[Any]:
    """Parameters from 0: the first `usual` for every run, those after them for the long one."""
    return [*range(usual), *(pytest.param(each, marks=pytest.mark.long) for each in range(usual, in_all))]


def examples(in_all: int) -> int:
    """How many examples Hypothesis tries: this many with its own profile, and with ours the share that ours takes."""
    return -(-in_all * settings.default.max_examples // settings.get_profile("default").max_examples)
