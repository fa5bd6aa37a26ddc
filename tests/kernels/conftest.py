"""The kernels twice: as installed (compiled where a C compiler was there) and interpreted from the same source."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

import headrace.format.records as installed

PACKAGE = Path(installed.__file__).parents[1]


def interpreted(name: str) -> ModuleType:
    """A kernel, such as `format.records`, loaded from its source under another name."""
    source = PACKAGE.joinpath(*name.split(".")).with_suffix(".py")
    spec = importlib.util.spec_from_file_location(f"interpreted_{source.stem}", source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def interpreted_together(*names: str) -> dict[str, ModuleType]:
    """Kernels from their sources that find each other there, and not the compiled ones; those they need come first."""
    full = {name: f"headrace.{name}" for name in names}
    before = {each: importlib.import_module(each) for each in full.values()}
    try:
        for name, each in full.items():
            sys.modules[each] = interpreted(name)
        return {name: sys.modules[each] for name, each in full.items()}
    finally:
        sys.modules.update(before)


@pytest.fixture(scope="session")
def source_records() -> ModuleType:
    return interpreted("format.records")


@pytest.fixture(scope="session", params=["installed", "interpreted"])
def records(request: pytest.FixtureRequest) -> ModuleType:
    return installed if request.param == "installed" else interpreted("format.records")
