"""The Python that Spark's workers run: the same as this one, without what Spark puts in front of its path."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from headrace.pipeline.interpreter import interpreter

ASK = "import json, sys; print(json.dumps([sys.prefix, sys.path, sys.argv[1:]]))"


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    interpreter.cache_clear()
    yield
    interpreter.cache_clear()


def asked(path: str) -> tuple[str, list[str], list[str]]:
    command = [interpreter(), "-c", ASK, "a b", "$c"]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, check=True, timeout=60)
    prefix, places, given = json.loads(done.stdout)
    return prefix, places, given


def test_what_spark_names_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    prefix, places, given = asked("/spark/python/lib/pyspark.zip:/spark/python/lib/py4j.zip")
    assert prefix == sys.prefix
    assert given == ["a b", "$c"]
    assert not [place for place in places if place.startswith("/spark")]


def test_what_the_driver_was_given_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/my own/folder:/and $another")
    _, places, _ = asked("/spark/python/lib/pyspark.zip")
    assert [place for place in places if "my own" in place or "another" in place] == ["/my own/folder", "/and $another"]
    assert "/spark/python/lib/pyspark.zip" not in places


@pytest.mark.parametrize("named", ["", "/usr/bin/another"])
def test_whoever_imports_the_pipeline_has_spark_run_this_python(named: str) -> None:
    """Outside of an activated environment Spark would look for the source with another Python, and not find it."""
    environment = {name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"}
    if named:
        environment["PYSPARK_PYTHON"] = named
    program = "import os, headrace.pipeline; print(os.environ['PYSPARK_PYTHON'])"
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == (named or sys.executable)
