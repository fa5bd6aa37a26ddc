"""The scripts in `examples/`, with little data: they check themselves what came out, and draw it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(400)]

EXAMPLES = Path(__file__).parents[3] / "examples"


def example(name: str) -> ModuleType:
    pytest.importorskip("matplotlib")
    spec = importlib.util.spec_from_file_location(f"examples_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def is_picture(path: Path) -> bool:
    return path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 20_000


def test_audit(spark: SparkSession, tmp_path: Path) -> None:
    report = example("audit").run(spark, 10, tmp_path / "audit.png")
    (total,) = report.topics
    assert (report.code, total.lost, total.deleted) == (1, 60, 200)
    assert total.duplicates > 0
    assert {each.queue for each in report.queues} == {"mail", "stock"}
    assert is_picture(tmp_path / "audit.png")


def test_sessions(spark: SparkSession, tmp_path: Path) -> None:
    states = example("sessions").run(spark, 60, tmp_path / "sessions.png", runs=1)
    assert sum(states.values()) == 60
    assert is_picture(tmp_path / "sessions.png")


def test_logs(spark: SparkSession, tmp_path: Path) -> None:
    done = example("logs").run(spark, 4_000, tmp_path / "logs.png")
    assert done.rows == 4_000
    assert is_picture(tmp_path / "logs.png")


def test_replay(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark import cloudpickle

    module = example("replay")
    # Its function lies where no worker finds it; as a script it would be sent along.
    cloudpickle.register_pickle_by_value(module)
    assert module.run(spark, 2_000, 60.0, tmp_path / "replay.png").written == 2_000
    assert is_picture(tmp_path / "replay.png")


def test_archive(spark: SparkSession, tmp_path: Path) -> None:
    done = example("archive").run(spark, 2_000, tmp_path / "archive.png")
    assert (done.rows, done.lag) == (1_000, 0)
    assert is_picture(tmp_path / "archive.png")
