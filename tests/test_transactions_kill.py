"""Consume, transform, produce with unchanged clients, while the broker and the clients are killed with kill -9.

A source writes transactions, and aborts some; copiers make an effect of each record that they read as committed, and
commit how far they have read in the same transaction. Whoever dies is started again. In the end every committed record
of the source has had its effect once, and everything that the processes did and saw fits together, by the same checker
that the simulator uses.
"""

from __future__ import annotations

import time
from pathlib import Path
from random import Random

import pytest
from tests.copy_scene import Scene, check_copied, create_topics, keeps_on, settle
from tests.longer import LONGER
from tests.serve_process import ServeProcess
from tests.waiting import wait_until

from simulation.history import Violation


def copy_under_kills(folder: Path, library: str, copiers: int, seconds: float, seed: int) -> int:
    """How many transactions the copiers committed."""
    random = Random(seed)
    with ServeProcess(folder / "data", "--checkpoint-ms", "700") as broker:
        create_topics(broker.kafka)
        scene = Scene(folder, broker, library, copiers)
        try:
            end = time.monotonic() + seconds
            # On a slow machine it takes longer until there is something to judge.
            while time.monotonic() < end or scene.committed("copier") < 8:
                scene.keep()
                before = scene.committed("copier")
                wait_until(lambda at=before: keeps_on(scene, at), scene.words)
                time.sleep(random.uniform(0.0, 0.6))
                if random.random() < 0.5:
                    broker.kill()
                    time.sleep(random.choice((0.0, 0.3)))
                    broker.start()
                else:
                    random.choice([scene.source, *scene.copiers, *scene.copiers]).kill()
            scene.source.kill()
            settle(scene)
        finally:
            scene.kill()
        committed = check_copied(scene)
        broker.stop()
        return committed


LIBRARIES = [("confluent", 2), ("aiokafka", 1), ("kafka-python", 1)]


@pytest.mark.parametrize(("library", "copiers"), LIBRARIES)
def test_every_input_has_its_effect_once(tmp_path: Path, library: str, copiers: int) -> None:
    assert copy_under_kills(tmp_path, library, copiers, 6, seed=1) > 3


def test_the_checker_sees_effects_of_what_was_not_committed(tmp_path: Path) -> None:
    with pytest.raises(Violation, match="which is not there"):
        copy_under_kills(tmp_path, "careless", 1, 3, seed=2)


@pytest.mark.long
@pytest.mark.timeout(900 * LONGER)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("library", "copiers"), LIBRARIES)
def test_every_input_has_its_effect_once_for_minutes(tmp_path: Path, library: str, copiers: int, seed: int) -> None:
    assert copy_under_kills(tmp_path, library, copiers, 60 * LONGER, seed=seed) > 20
