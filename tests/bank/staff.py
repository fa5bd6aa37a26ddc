"""Processes that start in a moment: forked from one that has loaded everything and done nothing.

A process that is killed every few seconds would otherwise spend its life in importing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from tests.postgres import die_with_the_parent

LOADED = [
    "tests.bank.teller",
    "tests.bank.clearing",
    "tests.bank.relay",
    "headrace.cli.outbox",
    "sqlalchemy.dialects.postgresql",
]

_context = get_context("forkserver")
_context.set_forkserver_preload(LOADED)


def start(module: str, arguments: Sequence[str], log: Path) -> ForkServerProcess:
    """Run a module's `main`; what it says goes to `log`."""
    process = _context.Process(target=_run, args=(module, list(arguments), str(log)), daemon=True)
    process.start()
    return process


def _run(module: str, arguments: list[str], log: str) -> None:
    die_with_the_parent()
    said = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(said, 1)
    os.dup2(said, 2)
    for name in [name for name in os.environ if name.startswith("HEADRACE_")]:
        del os.environ[name]
    sys.argv = [module, *arguments]
    import_module(module).main()
