"""Clients of other languages, fetched and built by their own tools. A test is skipped, with the reason, where that
fails."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

BUILD_SECONDS = 300


def go_program(sources: Path, program: Path, *packages: str) -> None:
    """Build a program of Go, or several into the folder `program`."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("there is no Go to build clients with")
    build([go, "build", "-o", f"{program}", *packages], sources)


def node_program(sources: Path, folder: Path) -> list[str]:
    """The command of a program of Node, whose `package.json` and `client.js` are copied to a folder of their own."""
    for name in ("package.json", "client.js"):
        shutil.copy(sources / name, folder)
    return [npm_install(folder), "client.js"]


def npm_install(folder: Path, *packages: str, seconds: float = BUILD_SECONDS) -> str:
    """Fetch what a folder's `package.json` names, and these packages; the path of Node."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("there is no Node with npm")
    build([npm, "install", "--silent", "--no-fund", "--no-audit", "--no-package-lock", *packages], folder, seconds)
    return node


def build(command: list[str], folder: Path, seconds: float = BUILD_SECONDS) -> None:
    """Run a tool that fetches and builds."""
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip(f"{command[0]} did not fetch and build within {seconds:g} s")
    if done.returncode:
        pytest.skip(f"{command[0]} could not fetch or build: {(done.stdout + done.stderr)[-400:]}")
