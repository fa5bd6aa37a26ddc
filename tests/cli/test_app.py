from __future__ import annotations

import subprocess
import sys

import pytest

import headrace
from headrace.cli.app import COMMANDS

# What `headrace topic list` does without: the other commands, and what draws tables and bars.
HEAVY = ("headrace.broker", "headrace.cli.consume", "headrace.cli.log", "headrace.cli.pipeline", "headrace.log", "rich")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headrace.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)


@pytest.mark.parametrize("asked", ["version", "--version"])
def test_version(asked: str):
    assert run(asked).stdout == f"headrace {headrace.__version__}\n"


def test_a_command_loads_only_what_it_uses():
    """The failure is the broker's absence: everything before it has been imported by then."""
    program = (
        "import sys; sys.argv = ['headrace', 'topic', 'list', '--bootstrap', '127.0.0.1:1']\n"
        "from headrace.cli.app import run\n"
        "assert run() == 1\n"
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=20, check=False)
    loaded = set(done.stdout.split())
    assert "headrace.cli.topics" in loaded, done.stderr
    assert not loaded & set(HEAVY)


def test_help_lists_the_commands():
    done = run("--help")
    assert done.returncode == 0
    assert all(f"│ {command} " in done.stdout for command in [*COMMANDS, "serve", "version"])


@pytest.mark.parametrize("arguments", [("nonsense",), ("topic", "create"), ("consume", "t", "--format", "xml")])
def test_a_wrong_use_is_said_without_a_traceback(arguments: tuple[str, ...]):
    done = run(*arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "Error" in done.stderr
