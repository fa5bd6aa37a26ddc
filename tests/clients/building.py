"""Clients of other languages, fetched and built by their own tools. A test is skipped, with the reason, where that
fails."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

BUILD_SECONDS = 300


def build(command: list[str], folder: Path) -> None:
    """Run a tool that fetches and builds."""
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip(f"{command[0]} did not fetch and build the client within {BUILD_SECONDS} s")
    if done.returncode:
        pytest.skip(f"{command[0]} could not fetch or build the client: {(done.stdout + done.stderr)[-400:]}")
