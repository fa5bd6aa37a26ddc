"""Every command: its help, and every option of it with values that make no sense: a sentence, never a traceback."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import typer.main
from tests.cli.conftest import Cli

from headrace.cli import app
from headrace.embedded import Broker
from headrace.errors import HeadraceError

BY_METAVAR = {
    "HOST:PORT": ["127.0.0.1:99999", "127.0.0.1", ":", "127.0.0.1:²", "a..b:1", "a b:1", "::1:9092", "9" * 5000],
    "URL": ["nonsense", "http://a..b:1/", "http://127.0.0.1:99999/", "http://[::1"],
    "DIR": ["s3://bucket/x", "file://host/x", "/dev/null/x", "x" * 5000],
    "FILE": ["s3://bucket/x", "/dev/null/x", "/", "x" * 5000],
}
OTHERS = ["", "-1", "²", "nan", "9" * 5000, "(", "a b/c\nd", "99999999999999999999", "@99999999999999999999", "1e400d"]
# What a command is given where it must have something.
REQUIRED = {
    "MODULE:APP": "json:loads",
    "DIR": "/dev/null/nowhere",
    "ETCD_URL": "etcd://127.0.0.1:1/main",
    "NODE": "1",
    "NODE...": "1",
    "NAME=VALUE...": "min.insync.replicas=1",
    "place": "nowhere/0/0",
}
# Longer than any of them takes where it says what is wrong.
SECONDS = 60


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if hasattr(command, "commands"):
        for name, below in command.commands.items():
            yield from leaves(below, (*path, name))
    else:
        yield path, command


COMMANDS = {
    " ".join(path): command
    for path, command in leaves(typer.main.get_command(app.tree()))
    if path not in (("serve",), ("version",))
}


@pytest.fixture
def deadline() -> Iterator[None]:
    def late(number: int, frame: FrameType | None) -> None:
        raise TimeoutError("the command did not end")

    before = signal.signal(signal.SIGALRM, late)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def spark(*_: object) -> None:
    raise HeadraceError("Spark would start")


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(http="127.0.0.1:0") as started:
        yield started


@pytest.mark.parametrize("there", [False, True], ids=["away", "there"])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_value_that_makes_no_sense_is_answered_with_a_sentence(
    name: str, there: bool, cli: Cli, deadline: None, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = COMMANDS[name]
    for package in ("pyarrow", "pyspark") if name.startswith("pipeline") else ():
        pytest.importorskip(package)
    monkeypatch.setattr("examples.demo.demo", lambda *_, **__: print("a demo"))
    monkeypatch.setattr("headrace.pipeline.session.session", spark)
    monkeypatch.setattr("headrace.cli.console.serve", lambda _: print("a console"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADRACE_BOOTSTRAP", broker.kafka if there else "127.0.0.1:1")
    monkeypatch.setenv("HEADRACE_HTTP", broker.http if there else "127.0.0.1:1")
    needed: dict[str, list[str]] = {}
    for parameter in command.params:
        if parameter.required:
            value = REQUIRED.get(parameter.metavar or "", REQUIRED.get(parameter.name, "x"))
            needed[parameter.name] = [parameter.opts[0], value] if parameter.param_type_name == "option" else [value]
    for parameter in command.params:
        if getattr(parameter, "is_flag", False):
            continue
        for value in BY_METAVAR.get(parameter.metavar or "", OTHERS):
            is_option = parameter.param_type_name == "option"
            given = [f"{parameter.opts[0]}={value}"] if is_option else [value]
            others = [text for each, texts in needed.items() if each != parameter.name for text in texts]
            arguments = [*others, *given] if is_option else ["--", *given, *others]
            signal.alarm(SECONDS)
            done = cli(*name.split(), *arguments)
            signal.alarm(0)
            assert "Traceback" not in done.err, (arguments, done.err)
            assert "unexpected error" not in done.err, (arguments, done.err)
            assert done.code == 0 or done.err.strip(), arguments


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_a_short_flag_and_fits_a_narrow_terminal(name: str, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    short, long = cli(*name.split(), "-h"), cli(*name.split(), "--help")
    assert (short.code, short.out) == (0, long.out)
    assert "<bool>" not in short.text
    assert "\N{HORIZONTAL ELLIPSIS}" not in short.text
    assert max(map(len, short.lines)) <= 80
    for parameter in COMMANDS[name].params:
        assert parameter.param_type_name != "option" or parameter.opts[0] in short.text


@pytest.mark.parametrize("name", [(), ("queue",), ("pipeline",)])
def test_groups_of_commands_have_help_likewise(name: tuple[str, ...], cli: Cli) -> None:
    assert cli(*name, "-h").text == cli(*name, "--help").text
    assert "<bool>" not in cli(*name, "-h").text


@pytest.mark.parametrize(
    ("door", "arguments", "said"),
    [
        ("http", ("topic", "list", "--bootstrap"), "answers HTTP, not Kafka. Use --bootstrap with the Kafka door's"),
        ("nsq_http", ("topic", "list", "--bootstrap"), "answers HTTP, not Kafka. Use --bootstrap with the Kafka"),
        ("nsq", ("topic", "list", "--bootstrap"), "answers NSQ, not Kafka. Use --bootstrap with the Kafka door's"),
        ("kafka", ("queue", "list", "--http"), "answers another protocol (Kafka's, perhaps), not HTTP. Use --http"),
        ("nsq", ("queue", "list", "--http"), "answers NSQ, not HTTP. Use --http with the HTTP door's address"),
        ("nsq_http", ("queue", "list", "--http"), "is not an HTTP door of this version: it answers 404 Not Found"),
    ],
)
def test_an_address_of_another_door_is_named_at_once(
    door: str, arguments: tuple[str, ...], said: str, cli: Cli
) -> None:
    with Broker(http="127.0.0.1:0", nsq_http="127.0.0.1:0") as broker:
        address = getattr(broker, door)
        began = time.monotonic()
        done = cli(*arguments, address)
        took = time.monotonic() - began
    assert done.code == 1
    assert f"headrace: {address} {said}" in done.err
    # The client would wait for ten.
    assert took < 9


def test_names_are_whole_on_a_narrow_terminal(cli: Cli, broker: Broker) -> None:
    name = "orders." + "x" * 200
    assert cli("topic", "create", name, "--bootstrap", broker.kafka).code == 0
    inside, outside = pty.openpty()
    command = [sys.executable, "-m", "headrace.cli", "topic", "list", "--bootstrap", broker.kafka]
    with subprocess.Popen(command, stdout=outside, env={**os.environ, "COLUMNS": "80"}) as running:
        os.close(outside)
        seen = b""
        with suppress(OSError):
            while piece := os.read(inside, 4096):
                seen += piece
    os.close(inside)
    assert running.returncode == 0
    assert name.encode() in seen


def test_what_was_not_foreseen_is_one_line_too(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object, **__: object) -> None:
        raise ZeroDivisionError("two\nlines")

    monkeypatch.setattr("examples.demo.demo", failing)
    monkeypatch.setattr("examples.demo.prepare", lambda folder: folder)
    done = cli("demo")
    assert (done.code, done.err) == (
        1,
        "headrace: unexpected error: ZeroDivisionError: two. HEADRACE_TRACEBACK=1 shows where it comes from.\n",
    )
    monkeypatch.setenv("HEADRACE_TRACEBACK", "1")
    with pytest.raises(ZeroDivisionError):
        cli("demo")
