"""Runs the Python blocks of pages, and their shell blocks between them, in one process: `python program.py PLAN...`.

A plan is JSON: the page's environment, and a list of steps, each with what to run and where it stands. What a program
would do until it ends (an application, a reader, a question to the person at the keyboard) lasts here until it has
begun.
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

# Commands that last: they are interrupted, as a person would do it.
_LASTING = re.compile(r"--follow|outbox relay|headrace subscribe\b")
_SECONDS = 240
# For how long a person watches a command that has begun.
_WATCHED_SECONDS = 1
_ESTABLISHED = "01"


def _begin_only() -> None:
    """Let everything that would last return once it has begun."""
    builtins.input = lambda *_: ""
    from headrace.sdk import App

    async def begin(app: App) -> None:
        async with app:
            pass

    App.run = lambda self: asyncio.run(begin(self))  # type: ignore[method-assign]
    import nsq
    from tornado.ioloop import IOLoop

    run = nsq.run

    def begin_reading() -> None:
        IOLoop.current().call_later(1, IOLoop.current().stop)
        run()

    nsq.run = begin_reading


def _shell(line: str, answer: Any) -> None:
    lasting = bool(_LASTING.search(line))
    # `exec`: the signal is for the command, and not for the shell.
    command = ["bash", "-o", "pipefail", "-c", f"exec {line}" if lasting else line]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        if lasting:
            _interrupt(process)
        out, err = process.communicate(timeout=_SECONDS)
    finally:
        process.kill()
    if process.returncode not in ((0, 130) if lasting else (0,)) or "Traceback" in err:
        raise SystemExit(f"{line}\nended with {process.returncode}\n{out}{err}")
    if answer is not None:
        got = json.loads(out)
        if not (set(answer) <= set(got) and not any("error" in key for key in got)):
            raise SystemExit(f"{line}\nanswered {got}, and the page has {answer}")
    print(out)


def _interrupt(process: subprocess.Popen[str]) -> None:
    """End a command once it talks to the broker: one that still imports its modules would be interrupted in there."""
    end = time.monotonic() + _SECONDS
    while process.poll() is None and time.monotonic() < end and not _is_connected(process.pid):
        time.sleep(0.05)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_WATCHED_SECONDS)
    process.send_signal(signal.SIGINT)


def _is_connected(pid: int) -> bool:
    """Whether a process has a connection that is established."""
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    established = {f"socket:[{row[9]}]" for row in rows if row[3] == _ESTABLISHED}
    with contextlib.suppress(OSError):
        # What a descriptor is cannot be asked once it is closed.
        return any(os.readlink(each) in established for each in Path(f"/proc/{pid}/fd").iterdir())
    return False


def run_page(plan: Path) -> None:
    page = json.loads(plan.read_text())
    os.chdir(plan.parent)
    os.environ.update(page["environment"])
    sys.path.insert(0, str(plan.parent))
    # Libraries look names up in the module of a class.
    module = sys.modules["__main__"] = ModuleType("__main__")
    for step in page["steps"]:
        if step["language"] == "python":
            # Errors name the line of the page.
            source = "\n" * (step["line"] - 1) + step["text"]
            exec(compile(source, step["page"], "exec", dont_inherit=True), module.__dict__)
        elif step["language"] == "sql":
            for statement in filter(str.strip, step["text"].split(";")):
                module.__dict__["spark"].sql(statement)
        else:
            _shell(step["text"], step["answer"])
    sys.path.remove(str(plan.parent))


_begin_only()
for each in sys.argv[1:]:
    run_page(Path(each))
