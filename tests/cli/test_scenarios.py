"""`headrace scenario`."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from headrace.cli.app import tree

run = CliRunner().invoke


def test_listed_and_shown() -> None:
    listed = run(tree(["scenario"]), ["scenario", "list"])
    assert listed.exit_code == 0
    assert "ordered" in listed.output
    shown = run(tree(["scenario"]), ["scenario", "show", "burst"])
    assert shown.exit_code == 0
    assert "1000.0" in shown.output
    assert "traced" in shown.output
    told = json.loads(run(tree(["scenario"]), ["scenario", "show", "stream", "--json"]).output)
    assert (told["wire"], told["batch"]) == ("kafka", 500)


def test_one_that_there_is_not() -> None:
    asked = run(tree(["scenario"]), ["scenario", "show", "chaos"])
    assert asked.exit_code == 1
    assert "there is no scenario 'chaos'" in str(asked.exception)
