"""A call in a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.ground.disk import SystemDisk
from headrace.worker import Call


def test_what_lies_in_the_current_directory_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file").touch()
    for name in ("pickle", "typing", "headrace"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(3)\n")
    monkeypatch.chdir(tmp_path)
    assert Call(str(tmp_path), SystemDisk.listdir, ("data",)).wait() == ["file"]
