"""The log under power cuts, kills, full and failing disks: what it promised is kept; and where the flush is broken on
purpose, the checks say so."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from tests.longer import LONGER, seeds
from tests.simulation.campaigns import caught, failures

from headrace.log.interface import Durability
from simulation.log.campaign import LogCampaign

SEEDS = 80


@pytest.mark.parametrize("part", seeds(2, 4))
def test_the_promises_are_kept(part):
    """All durabilities in one log."""
    step = SEEDS // 4
    assert failures(LogCampaign(), part * step, (part + 1) * step) == {}


@pytest.mark.parametrize("durability", Durability)
def test_the_promises_of_one_durability_are_kept(durability):
    assert failures(LogCampaign(durabilities=(durability,)), 0, 8) == {}


@pytest.mark.long
@pytest.mark.timeout(3600 * LONGER)
@pytest.mark.parametrize("durabilities", [tuple(Durability), *((each,) for each in Durability)])
def test_the_promises_are_kept_over_many_seeds(durabilities):
    assert failures(LogCampaign(durabilities=durabilities), 10_000, 10_000 + 500 * LONGER) == {}


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param({"write_durably journal"}, id="acknowledged before the journal has it"),
        pytest.param({"sync segment"}, id="segments are not synced by a checkpoint"),
        pytest.param({"sync_dir"}, id="names are not synced"),
    ],
)
def test_a_broken_flush_is_caught(broken):
    caught(LogCampaign(durabilities=(Durability.SYNC,), ignored=frozenset(broken)), 400)


def test_a_seed_replays_exactly():
    campaign = LogCampaign()
    for seed in range(3):
        first, second = campaign.run(seed), campaign.run(seed)
        assert (first.digest, first.endings) == (second.digest, second.endings)


def test_the_command_prints_crash_points_and_replays():
    command = [sys.executable, "-m", "simulation", "--seeds"]
    environment = {**os.environ, "COLUMNS": "200"}
    run = subprocess.run([*command, "0:2"], capture_output=True, text=True, timeout=60, env=environment, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "write_durably journal" in run.stdout
    broken = ["--break", "write_durably", "--break", "sync", "--break", "sync_dir", "--failures", "1"]
    run = subprocess.run(
        [*command, "0:50", *broken], capture_output=True, text=True, timeout=60, env=environment, check=False
    )
    assert run.returncode == 1
    assert "--break 'write_durably' --break 'sync' --break 'sync_dir' --trace" in run.stdout
