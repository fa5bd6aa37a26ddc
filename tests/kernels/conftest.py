"""The kernels twice: as installed (compiled where a C compiler was there) and interpreted from the same source."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

import headrace.kernels.records as installed

SOURCES = Path(installed.__file__).parent


def interpreted(name: str) -> ModuleType:
    """A kernel loaded from its source under another name."""
    spec = importlib.util.spec_from_file_location(f"interpreted_{name}", SOURCES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def source_records() -> ModuleType:
    return interpreted("records")


@pytest.fixture(scope="session", params=["installed", "interpreted"])
def records(request: pytest.FixtureRequest) -> ModuleType:
    return installed if request.param == "installed" else interpreted("records")
