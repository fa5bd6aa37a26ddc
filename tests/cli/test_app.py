from __future__ import annotations

import os
import shlex
import subprocess
import sys

import pytest
from tests.waiting import SECONDS

import headrace
from headrace.cli.app import COMMANDS

# What `headrace topic list` does without: the other commands, and what draws tables and bars.
HEAVY = ("headrace.broker", "headrace.cli.consume", "headrace.cli.log", "headrace.cli.pipeline", "headrace.log", "rich")


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "headrace.cli", *arguments]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), capture_output=True, text=True, timeout=SECONDS, check=False)


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
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=SECONDS, check=False)
    loaded = set(done.stdout.split())
    assert "headrace.cli.topics" in loaded, done.stderr
    assert not loaded & set(HEAVY)


@pytest.mark.parametrize("arguments", [("version",), ("scenario", "show", "burst", "--json"), ("--help",)])
def test_output_that_cannot_be_written_is_said_in_a_line(arguments: tuple[str, ...]):
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command(*arguments), stdout=full, stderr=subprocess.PIPE, timeout=SECONDS, check=False)
    assert done.returncode == 1
    assert done.stderr == b"headrace: No space left on device\n"


@pytest.mark.parametrize("arguments", [("version",), ("scenario", "show", "burst", "--json")])
def test_a_reader_who_has_left_is_no_error_to_speak_of(arguments: tuple[str, ...]):
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(command(*arguments), stdout=writing, stderr=subprocess.PIPE, timeout=SECONDS, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, b"")


def test_streams_that_are_missing_are_opened_empty():
    """Their numbers are not left to files."""
    program = (
        "import os; from headrace.cli import _open_missing_streams; _open_missing_streams(); print(1)\n"
        "assert [os.readlink(f'/proc/self/fd/{number}') for number in range(3)] == ['/dev/null'] * 3"
    )
    line = shlex.join([sys.executable, "-c", program])
    assert subprocess.run(["sh", "-c", f"{line} <&- >&- 2>&-"], timeout=SECONDS, check=False).returncode == 0
    line = shlex.join(command("version"))
    assert subprocess.run(["sh", "-c", f"{line} <&- >&- 2>&-"], timeout=SECONDS, check=False).returncode == 0


def test_an_interrupt_while_modules_are_imported():
    program = (
        "import sys, headrace.cli\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, *rest):\n"
        "        if name == 'headrace.cli.app': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        "headrace.cli.main()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=SECONDS, check=False)
    assert (done.returncode, done.stderr) == (130, "")


def test_help_lists_the_commands():
    done = run("--help")
    assert done.returncode == 0
    assert all(f"\n  {command} " in done.stdout for command in [*COMMANDS, "serve", "version"])
    before, _, after = done.stdout.partition("\nTopics and messages:\n")
    assert "\n  serve " in before
    assert "\n  topic " not in before
    assert after.startswith("  topic ")
    assert "\n  overview " not in after


@pytest.mark.parametrize("arguments", [("nonsense",), ("topic", "create"), ("consume", "t", "--format", "xml")])
def test_a_wrong_use_is_said_without_a_traceback(arguments: tuple[str, ...]):
    done = run(*arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "Error" in done.stderr
