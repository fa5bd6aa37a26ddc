"""Running campaigns in tests: that they hold, and that a broken broker is caught."""

from __future__ import annotations

import pytest

from simulation.campaign import Campaign


def failures(campaign: Campaign, first: int, last: int) -> dict[int, str]:
    """The failing seeds of a range."""
    return {run.seed: run.failure for run in campaign.seeds(first, last) if run.failure}


def caught(campaign: Campaign, seeds: int) -> str:
    """What the first failing seed of a broken broker reports."""
    for run in campaign.seeds(0, seeds):
        if run.failure:
            return run.failure
    pytest.fail(f"no check failed in {seeds} seeds")
