"""The table of APIs against the handlers and against kio's schemas."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest
from kio.index import load_request_schema
from kio.schema.index import api_key_map

from headrace.doors.kafka import fetch_wire, produce_wire
from headrace.doors.kafka.registry import APIS, FETCH, PRODUCE, Api, handler, versions_table
from headrace.doors.kafka.rights import rights_table


@pytest.mark.parametrize("api", [each for each in APIS.values() if each.key not in (PRODUCE, FETCH)])
def test_a_handler_says_the_versions_of_the_table(api: Api) -> None:
    module = import_module(f"headrace.doors.kafka.handlers.k{api.key:02d}_{api.name}")
    title = "".join(word.capitalize() for word in api.name.split("_"))
    versions = f"versions {api.oldest} to {api.newest}" if api.oldest < api.newest else f"version {api.oldest}"
    assert (module.__doc__ or "").startswith(f"{title} ({api.key}), {versions}")
    assert handler(api.key) is module.handle


def test_the_hot_path_says_the_versions_of_the_table() -> None:
    assert APIS[PRODUCE][2:] == (produce_wire.OLDEST, produce_wire.NEWEST, produce_wire.FLEXIBLE)
    assert APIS[FETCH][2:] == (fetch_wire.OLDEST, fetch_wire.NEWEST, fetch_wire.FLEXIBLE)


@pytest.mark.parametrize("api", APIS.values())
def test_the_table_agrees_with_the_schemas(api: Api) -> None:
    assert api_key_map[api.key] == api.name
    for version in range(api.oldest, api.newest + 1):
        assert load_request_schema(api.key, version).__flexible__ == (version >= api.flexible)


def test_the_documented_table_is_up_to_date() -> None:
    text = (Path(__file__).parents[3] / "docs" / "kafka.md").read_text()
    assert rights_table() in text, "run `make docs` to renew the rights in docs/kafka.md"
    assert versions_table() in text, "run `make docs` to renew the table in docs/kafka.md"
