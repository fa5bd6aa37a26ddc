from __future__ import annotations

import subprocess
import sys

import pytest

import headrace

COMMANDS = ("consume", "demo", "group", "log", "produce", "serve", "topic", "version")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headrace.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)


def test_version():
    assert run("version").stdout == f"headrace {headrace.__version__}\n"


def test_help_lists_the_commands():
    done = run("--help")
    assert done.returncode == 0
    assert all(command in done.stdout for command in COMMANDS)


@pytest.mark.parametrize("arguments", [("nonsense",), ("topic", "create"), ("consume", "t", "--format", "xml")])
def test_a_wrong_use_is_said_without_a_traceback(arguments: tuple[str, ...]):
    done = run(*arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "Error" in done.stderr
