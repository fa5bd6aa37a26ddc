"""Runs the Python blocks of a page, and its shell blocks between them, in one process: `python program.py PLAN`.

The plan is JSON: a list of steps, each with what to run and where it stands. What a program would do until it ends
(an application, a reader, a question to the person at the keyboard) lasts here until it has begun.
"""

from __future__ import annotations

import asyncio
import builtins
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

# Commands that last: they are interrupted, as a person would do it.
_LASTING = re.compile(r"--follow|outbox relay|headrace (subscribe|serve)\b")
_BEGUN_SECONDS = 3


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
    command = f"timeout --preserve-status -s INT {_BEGUN_SECONDS} {line}" if lasting else line
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, timeout=240)
    if done.returncode not in ((0, 130) if lasting else (0,)) or "Traceback" in done.stderr:
        raise SystemExit(f"{line}\nended with {done.returncode}\n{done.stdout}{done.stderr}")
    if answer is not None:
        got = json.loads(done.stdout)
        if not (set(answer) <= set(got) and not any("error" in key for key in got)):
            raise SystemExit(f"{line}\nanswered {got}, and the page has {answer}")
    print(done.stdout)


def main(plan: str) -> None:
    _begin_only()
    # Libraries look names up in the module of a class.
    module = sys.modules["__main__"] = ModuleType("__main__")
    for step in json.loads(Path(plan).read_text()):
        if step["language"] == "python":
            # Errors name the line of the page.
            source = "\n" * (step["line"] - 1) + step["text"]
            exec(compile(source, step["page"], "exec", dont_inherit=True), module.__dict__)
        elif step["language"] == "sql":
            for statement in filter(str.strip, step["text"].split(";")):
                module.__dict__["spark"].sql(statement)
        else:
            _shell(step["text"], step["answer"])


main(sys.argv[1])
