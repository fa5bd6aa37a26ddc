from __future__ import annotations

import functools
import io
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import structlog
import typer.main

from headrace.cli import app, main
from headrace.embedded import Broker


@dataclass(frozen=True)
class Outcome:
    """What a command left behind."""

    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode()

    @property
    def json(self) -> Any:
        try:
            return json.loads(self.out)
        except ValueError:
            raise AssertionError(f"not JSON ({self.code}): {self.text}{self.err}") from None

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()


Cli = Callable[..., Outcome]


@pytest.fixture(scope="session", autouse=True)
def one_tree() -> Iterator[None]:
    """A process has one command to run, and builds its part of the tree for it. Here that is built once: it takes
    longer than what most commands do."""
    built = functools.cache(app.tree)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(app, "tree", lambda names=app.COMMANDS: built(tuple(names)))
        patch.setattr(typer.main, "get_command", functools.cache(typer.main.get_command))
        yield


@pytest.fixture
def cli(
    headrace_broker: Broker, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> Callable[..., Outcome]:
    """Runs `headrace ...` in this process against a broker of the test's own."""
    monkeypatch.setenv("HEADRACE_BOOTSTRAP", headrace_broker.kafka)
    # A command that logs as a server does would do so for the rest of this process: loggers are made once.
    monkeypatch.setattr(structlog, "configure", lambda **_: None)

    def run(*arguments: object, stdin: bytes = b"") -> Outcome:
        monkeypatch.setattr(sys, "argv", ["headrace", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capfdbinary.readouterr()
        try:
            main()
            code: Any = 0
        except SystemExit as end:
            code = end.code
        out, err = capfdbinary.readouterr()
        assert b"Traceback" not in err
        return Outcome(code or 0, out, err.decode())

    return run
