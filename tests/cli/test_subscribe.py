"""`headrace subscribe`: its settings, from flags and TOML, and what it says of those that make no sense. That it pushes
is tested in tests/webhooks."""

from __future__ import annotations

import json
import os
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from headrace.cli import main
from headrace.cli.subscribe_line import Line
from headrace.webhooks.endpoint import Answer, Verdict
from headrace.webhooks.hook import Hook, group_of
from headrace.webhooks.pusher import Webhooks

SECRET = "a-secret-of-enough-bytes"
URL = ("--url", "https://shop.example/hook")


class Planned:
    """What a command said."""

    def __init__(self, code: object, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def hooks(self) -> list[dict[str, Any]]:
        assert self.code == 0, self.err
        found: list[dict[str, Any]] = json.loads(self.out)["hooks"]
        return found


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs `headrace subscribe --dry-run ...` in this process."""
    for name in [each for each in os.environ if each.startswith("HEADRACE_")]:
        monkeypatch.delenv(name)

    def run(*arguments: object, secret: str = SECRET) -> Planned:
        if secret:
            monkeypatch.setenv("HEADRACE_WEBHOOK_SECRET", secret)
        else:
            monkeypatch.delenv("HEADRACE_WEBHOOK_SECRET", raising=False)
        monkeypatch.setattr(sys, "argv", ["headrace", "subscribe", "--dry-run", *map(str, arguments)])
        try:
            main()
            code: object = 0
        except SystemExit as end:
            code = end.code or 0
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return Planned(code, out, err)

    return run


def test_the_usual_values(plan: Any):
    [hook] = plan("orders", *URL).hooks
    assert {name: hook[name] for name in ("url", "signed_with", "workers", "timeout", "attempts", "batch")} == {
        "url": "https://shop.example/hook",
        "signed_with": 1,
        "workers": 8,
        "timeout": "15s",
        "attempts": 10,
        "batch": 0,
    }
    assert hook["ladder"] == ["5s", "30s", "2m", "10m", "30m", "1h", "2h"]
    assert hook["example"]["headers"]["ce-id"] == "orders/0/0"
    [ordered] = plan("orders", *URL, "--ordered").hooks
    assert (ordered["attempts"], ordered["ladder"]) == (0, ["1s", "5s", "30s"])


def test_every_flag(plan: Any):
    flags = (
        *("--group", "g", "--workers", 3, "--rate", 5, "--timeout", "2s", "--attempts", 4, "--ladder", "1s,2m"),
        *("--from-now", "--filter", "region = eu", "--structured", "--source", "urn:a", "--type", "t", "-H", "A=b=c"),
        *("--content-type", "text/csv", "--broker", "kafka://k:1", "--name", "n", "--metrics", "127.0.0.1:0"),
    )
    planned = plan("orders", *URL, *flags)
    [hook] = planned.hooks
    assert json.loads(planned.out)["broker"] == "kafka://k:1"
    example = hook.pop("example")
    assert hook == {
        "url": "https://shop.example/hook",
        "group": "g",
        "dead_letters": "orders.g.dead",
        "signed_with": 1,
        "workers": 3,
        "rate": 5.0,
        "timeout": "2s",
        "attempts": 4,
        "ladder": ["1s", "2m"],
        "batch": 0,
        "ordered": False,
        "from_now": True,
        "filter": "region = eu",
    }
    assert json.loads(example["body"])["source"] == "urn:a"
    # Its value may be secret.
    assert example["headers"]["A"] == "...."


def test_secrets(plan: Any, tmp_path: Path):
    file = tmp_path / "secrets"
    file.write_text(f"# old and new\n{SECRET}\n{SECRET} 2\n")
    assert plan("t", *URL, "--secret-file", file, secret="").hooks[0]["signed_with"] == 2
    assert plan("t", *URL, "--unsigned", secret="").hooks[0]["signed_with"] == 0
    assert plan("t", *URL, secret="first-secret-of-two second-secret-of-two").hooks[0]["signed_with"] == 2
    seen = plan("t", *URL, "--secret", SECRET, secret="")
    assert seen.hooks[0]["signed_with"] == 1
    assert "other users can see" in seen.err
    for run in (seen, plan("t", "--url", "https://me:pw@a.example/?token=7")):
        assert SECRET not in run.out
        assert "pw" not in run.out
        assert "token" not in run.out


def test_a_file_and_flags_that_win(plan: Any, tmp_path: Path):
    file = tmp_path / "hooks.toml"
    file.write_text(
        """
        topic = "orders"
        workers = 2
        timeout = "3s"
        [[hook]]
        url = "https://a.example"
        [[hook]]
        url = "https://b.example"
        workers = 5
        headers = { X = "y" }
        ladder = ["7s"]
        batch_wait = "10ms"
        """
    )
    first, second = plan("--config", file, "--timeout", "4s").hooks
    assert (first["group"], first["workers"], first["timeout"]) == ("hook.a.example", 2, "4s")
    assert (second["group"], second["workers"], second["timeout"], second["ladder"]) == (
        "hook.b.example", 5, "4s", ["7s"]
    )  # fmt: skip
    # URLs of flags stand for those of the file.
    [only] = plan("other", "--config", file, "--url", "https://c.example").hooks
    assert (only["url"], only["workers"]) == ("https://c.example", 2)
    assert only["dead_letters"] == "other.hook.c.example.dead"


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("t",), "--url"),
        (URL, "no topic"),
        (("a b", *URL), "topic"),
        (("t", "--url", "ftp://a"), "https://"),
        (("t", "--url", "https://"), "https://"),
        (("t", "--url", "https://a:x/"), "is not a URL"),
        (("t", "--url", "https://a/ b"), "https://"),
        (("t", "--url", "http://a", "--insecure"), "does not use TLS"),
        (("t", *URL, "--url", "https://b", "--group", "g"), "--group"),
        (("t", *URL, "--group", "a b"), "group"),
        (("t", *URL, "--group", "x" * 65), "64"),
        (("t", *URL, "--workers", 0), "workers"),
        (("t", *URL, "--workers", 1001), "1000"),
        (("t", *URL, "--batch", 1001), "batch"),
        (("t", *URL, "--timeout", "soon"), "duration"),
        (("t", *URL, "--timeout", "121s"), "120"),
        (("t", *URL, "--timeout", "49ms"), "50 ms"),
        (("t", *URL, "--ladder", "1s,x"), "duration"),
        (("t", *URL, "--attempts", 65536), "attempts"),
        (("t", *URL, "--rate", -1), "rate"),
        (("t", *URL, "--header", "x"), "NAME=VALUE"),
        (("t", *URL, "--header", "a b=c"), "header"),
        (("t", *URL, "--header", "a=b\r\nc: d"), "header"),
        (("t", *URL, "--header", "Webhook-Id=7"), "is reserved"),
        (("t", *URL, "--header", "Content-Length=7"), "is reserved"),
        (("t", *URL, "--batch", 2, "--structured"), "batch"),
        (("t", *URL, "--cert", "x"), "key"),
        (("t", *URL, "--ca-file", "x", "--insecure"), "insecure"),
        (("t", *URL, "--unsigned", "--secret", SECRET), "one of them"),
        (("t", *URL, "--secret", "short"), "guessed"),
        (("t", *URL, "--secret-file", "/none"), "cannot be read"),
        (("t", *URL, "--broker", "http://x"), "headrace://"),
        (("t", *URL, "--log-level", "loud"), "loud"),
        (("t", *URL, "--config", "/none"), "cannot be read"),
    ],
)
def test_what_makes_no_sense(plan: Any, arguments: tuple[object, ...], word: str):
    planned = plan(*arguments)
    assert (planned.code, planned.out) == (1, "")
    assert word in planned.err
    assert len([line for line in planned.err.splitlines() if "other users can see" not in line]) == 1


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("topic =", "TOML"),
        ("topic = 7", "topic"),
        ('topic = "t"\nspeed = 7\n[[hook]]\nurl = "https://a"', "speed"),
        ('topic = "t"\n[[hook]]\n', "url"),
        ('topic = "t"\n[hook]\nurl = "https://a"', "[[hook]]"),
        ('topic = "t"\n[[hook]]\nurl = "https://a"\nworkers = true', "workers"),
        ('topic = "t"\n[[hook]]\nurl = "https://a"\nheaders = {a = 1}', "headers"),
        ('topic = "t"\n[[hook]]\nurl = "https://a"\nsecrets = [1]', "secrets"),
        ('topic = "t"\n[[hook]]\nurl = "https://a"\ntopic = "u"', "topic"),
        ('topic = "t"\n[[hook]]\nurl = "https://a"\nladder = [true]', "duration"),
    ],
)
def test_files_that_make_no_sense(plan: Any, tmp_path: Path, text: str, word: str):
    file = tmp_path / "hooks.toml"
    file.write_text(text)
    planned = plan("--config", file)
    assert planned.code == 1
    assert word in planned.err
    assert len(planned.err.splitlines()) == 1


def test_without_a_secret_it_says_so(plan: Any):
    planned = plan("t", *URL, secret="")
    assert planned.code == 1
    assert "--secret-file" in planned.err


def test_edges(plan: Any):
    assert plan("t", *URL, "--timeout", "120s", "--workers", 1000, "--attempts", 65535, "--group", "x" * 64).hooks
    assert plan("t", *URL, "--timeout", "50ms", "--batch", 1000, secret="x" * 16).hooks


def test_the_names_of_queues():
    assert group_of("https://Shop.Example/") == "hook.shop.example"
    assert group_of("https://shop.example:443") == "hook.shop.example"
    names = {
        group_of(url)
        for url in (
            "https://shop.example/a",
            "https://shop.example/b",
            "https://shop.example:8443",
            "http://[::1]/a",
            "https://" + "x" * 63 + "." + "y" * 63,
        )
    }
    assert len(names) == 5
    assert all(len(name) <= 64 for name in names)
    # A token that changes makes no new queue.
    assert group_of("https://shop.example/a?token=1") == group_of("https://u:p@shop.example/a?token=2")


async def test_the_line_on_a_terminal():
    hooks = [Hook("https://a.example"), Hook("https://b.example"), Hook("https://c.example")]
    webhooks = Webhooks("orders", hooks, "memory://line")
    first, second, third = webhooks.pushers
    first.figures.count_answer(Answer(Verdict.TAKEN, 200), 1_200)
    first.figures.count_answer(Answer(Verdict.REFUSED, 400), 3)
    second.figures.waits = True
    third.gone = True
    console = Console(width=200, record=True, force_terminal=True, file=StringIO())
    line = Line(console)
    console.print(line)
    line.follow(webhooks)
    console.print(line)
    text = console.export_text()
    assert "orders -> https://a.example pushing: 1,200 taken, 0/s, 0 failed, 3 refused" in text
    assert "https://b.example waiting for the endpoint" in text
    assert "https://c.example gone" in text
