"""Settings of the console: what does not fit is refused in a sentence, and the docs have all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.cli.console import settings_table
from headrace.console.addresses import parse_brokers
from headrace.console.settings import ConsoleSettings
from headrace.errors import ConfigError

DOCS = Path(__file__).parents[2] / "docs"


def test_brokers_have_names_and_nodes() -> None:
    assert parse_brokers("127.0.0.1:9080") == {"broker": ["http://127.0.0.1:9080"]}
    assert parse_brokers("eu=a:1,b:2  us=https://c:3/") == {
        "eu": ["http://a:1", "http://b:2"],
        "us": ["https://c:3"],
    }


@pytest.mark.parametrize(
    "text", ["", "a b", "a=", "x=ftp://a:1", "x=http://user:pass@a:1", "x=a:1/path", "x=a:99999", "/=a:1"]
)
def test_brokers_that_cannot_be_called(text: str) -> None:
    with pytest.raises(ConfigError):
        ConsoleSettings(brokers=text)


def test_the_documented_table_is_up_to_date() -> None:
    assert settings_table() in (DOCS / "console.md").read_text(), "run `make docs`"
