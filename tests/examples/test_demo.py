"""The demo, small: its numbers hold, and it says so when they do not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from examples.demo import demo, prepare, questions, stage, tickets
from headrace.cli.app import tree
from headrace.cli.demo import find_demo
from headrace.errors import HeadraceError


@pytest.fixture(autouse=True)
def _same_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A demo logs as a server does, and would do so for the rest of this process: loggers are made once."""
    monkeypatch.setattr("headrace.logs.log_like_a_server", lambda *_: None)


def test_all_checks_hold(tmp_path: Path) -> None:
    demo(["questions", "push", "tickets"], prepare(tmp_path / "demo"), 0.05, "async")
    reports = json.loads((tmp_path / "demo" / "report.json").read_text())
    assert [len(report["checks"]) for report in reports] == [5, 3, 7]
    assert all(check["holds"] for report in reports for check in report["checks"])


def test_an_event_that_is_lost_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    note = questions.Reader.note

    def forgetful(self: questions.Reader, event: questions.Event) -> None:
        if (event.question, event.number) != ("q3", 4):
            note(self, event)

    monkeypatch.setattr(questions.Reader, "note", forgetful)
    monkeypatch.setattr(stage, "STALLED_SECONDS", 1.0)
    with pytest.raises(HeadraceError, match=r"4 of the numbers are wrong: .*qa.audit: every event once, in order"):
        demo(["questions"], prepare(tmp_path / "demo"), 0.01, "async")


def test_an_order_that_is_not_cancelled_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Forgetful(set[int]):
        def add(self, number: int) -> None:
            if number != 8:
                super().add(number)

    made = tickets.Office.__init__

    def forgetful(self: tickets.Office, trains: dict[str, int]) -> None:
        made(self, trains)
        self.cancelled = Forgetful()

    monkeypatch.setattr(stage, "STALLED_SECONDS", 2.0)
    monkeypatch.setattr(tickets, "PAY_SECONDS", 1.0)
    monkeypatch.setattr(tickets.Office, "__init__", forgetful)
    with pytest.raises(HeadraceError, match="1 of the numbers are wrong: Train tickets: exactly those cancelled"):
        demo(["tickets"], prepare(tmp_path / "demo"), 0.01, "async")


def test_only_its_own_folder_is_emptied(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter").write_text("dear")
    with pytest.raises(HeadraceError, match="choose another with --to"):
        prepare(tmp_path / "mine")
    made = prepare(tmp_path / "demo")
    (made / "old").touch()
    assert [each.name for each in prepare(made).iterdir()] == [".headrace-demo"]


def test_an_unknown_scenario_is_refused() -> None:
    result = CliRunner().invoke(tree(["demo"]), ["demo", "--only", "weather"])
    assert isinstance(result.exception, HeadraceError)
    assert "questions, push, tickets, logs" in str(result.exception)


def test_the_package_alone_says_where_the_demo_is(tmp_path: Path) -> None:
    with pytest.raises(HeadraceError, match="Clone the repository, and run `make demo` in it"):
        find_demo(tmp_path)()
