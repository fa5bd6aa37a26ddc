"""`/openapi.json`: a valid document, of exactly the routes that there are, with the parameters and fields that they
take. That answers are as described is checked in `conftest.py`, for every answer that a test gets."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer.main
from openapi_spec_validator import OpenAPIV31SpecValidator
from tests.doors.http.api.conftest import Served
from tests.doors.http.api.described import described

from headrace.cli import app
from headrace.doors.http.api.openapi import NAME, table
from headrace.doors.http.api.operations import Endpoint
from headrace.doors.http.api.routes import DOCUMENT, ENDPOINTS, MODULES, RestApi
from headrace.doors.http.api.schemas import Named

PAGE = Path(__file__).parents[4] / "docs" / "rest-api.md"
IDS = [f"{each.operation.method} {each.operation.path}" for each in ENDPOINTS]


def test_the_document_is_valid():
    OpenAPIV31SpecValidator(described()).validate()


async def test_it_has_every_route_and_no_other(served: Served):
    status, answered = await served.ask("GET", DOCUMENT)
    assert (status, answered) == (200, described())
    routes = {route.path: sorted(route.handlers) for route in RestApi(served.broker).routes if route.path != DOCUMENT}
    assert routes == {path: sorted(map(str.upper, methods)) for path, methods in answered["paths"].items()}


def test_no_route_is_declared_twice_and_no_handler_is_forgotten():
    assert len(set(IDS)) == len(IDS)
    names = [each.name for each in ENDPOINTS]
    assert len(set(names)) == len(names)
    for module in MODULES:
        assert any(each.handle.__module__ == module.__name__ for each in ENDPOINTS), module.__name__


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=IDS)
async def test_a_route_takes_the_fields_that_it_declares(served: Served, endpoint: Endpoint):
    """A handler refuses what it does not know, and lists what it knows."""
    operation = endpoint.operation
    path = NAME.sub("x", operation.path)
    declared = [each.name for each in operation.query]
    if not operation.is_large:
        _, refused = await served.ask(operation.method, f"{path}?no_such_field=1")
        assert refused["message"].endswith(f". Known parameters: {', '.join(declared) or 'none'}")
    for name in declared:
        _, answer = await served.ask(operation.method, f"{path}?{name}=1")
        assert not re.match("there is no (field|parameter)", answer.get("message", "")), answer
    if operation.body is not None and operation.body_type == "application/json":
        _, refused = await served.ask(operation.method, path, {"no_such_field": 1})
        assert "no_such_field" in refused["message"]
        schema = operation.body.schema if isinstance(operation.body, Named) else operation.body
        listed = refused["message"].partition(". Known fields: ")[2]
        assert (set() if listed == "none" else set(listed.split(", "))) == set(schema["properties"])


def test_every_command_that_is_named_is_there():
    program = typer.main.get_command(app.tree())
    for each in ENDPOINTS:
        command = program
        for word in re.findall(r"[a-z-]+(?= |$)", each.operation.command.partition(" --")[0]):
            command = command.commands[word]  # type: ignore[attr-defined]


def test_the_page_has_the_routes():
    assert table(ENDPOINTS) in PAGE.read_text(), "run `make docs` to renew the table in docs/rest-api.md"
