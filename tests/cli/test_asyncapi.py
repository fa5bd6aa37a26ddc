"""`headrace asyncapi`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace.cli.app import tree
from headrace.errors import ConfigError

run = CliRunner().invoke

SOURCE = """
from headrace.sdk import App

app = App("shop.orders")
number = 7


class Holder:
    inner = App("inner")


@app.subscribe("orders")
async def take(text: str) -> None: ...
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "orders_of_a_shop.py").write_text(SOURCE)
    yield tmp_path
    sys.modules.pop("orders_of_a_shop", None)


def test_printed_and_written(project: Path) -> None:
    asked = ["asyncapi", "orders_of_a_shop:app", "--dir", str(project)]
    printed = run(tree(["asyncapi"]), asked)
    assert printed.exit_code == 0, printed.output
    document = json.loads(printed.stdout)
    assert document["info"]["title"] == "shop.orders"
    file = project / "asyncapi.json"
    written = run(tree(["asyncapi"]), [*asked, "--output", str(file), "--app-version", "2.0"])
    assert (written.exit_code, written.stdout) == (0, "")
    assert json.loads(file.read_text())["info"]["version"] == "2.0"
    inner = run(tree(["asyncapi"]), ["asyncapi", "orders_of_a_shop:Holder.inner", "--dir", str(project)])
    assert json.loads(inner.stdout)["info"]["title"] == "inner"


def test_yaml_where_there_is_a_writer_of_it(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ["asyncapi", "orders_of_a_shop:app", "--dir", str(project), "--format", "yaml"]
    monkeypatch.setitem(sys.modules, "yaml", None)
    without = run(tree(["asyncapi"]), asked)
    assert without.exit_code == 0
    assert "PyYAML is not installed" in without.stderr
    assert json.loads(without.stdout)["info"]["title"] == "shop.orders"
    monkeypatch.undo()
    yaml = pytest.importorskip("yaml")
    with_it = run(tree(["asyncapi"]), asked)
    assert not with_it.stdout.startswith("{")
    assert yaml.safe_load(with_it.stdout)["info"]["title"] == "shop.orders"
    file = project / "asyncapi.yml"
    run(tree(["asyncapi"]), [*asked[:-2], "--output", str(file)])
    assert yaml.safe_load(file.read_text())["info"]["title"] == "shop.orders"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("orders_of_a_shop", "is not MODULE:APP"),
        ("orders_of_a_shop:", "is not MODULE:APP"),
        ("nothing_here:app", "no module 'nothing_here'"),
        ("orders_of_a_shop:shop", "has no shop"),
        ("orders_of_a_shop:number", "is a int, not an App"),
    ],
)
def test_what_is_not_there_is_named(project: Path, name: str, why: str) -> None:
    asked = run(tree(["asyncapi"]), ["asyncapi", name, "--dir", str(project)])
    assert isinstance(asked.exception, ConfigError)
    assert why in str(asked.exception)


def test_a_file_that_cannot_be_written(project: Path) -> None:
    asked = run(
        tree(["asyncapi"]),
        ["asyncapi", "orders_of_a_shop:app", "--dir", str(project), "--output", str(project / "no" / "x")],
    )
    assert isinstance(asked.exception, ConfigError)
    assert "cannot be written" in str(asked.exception)
