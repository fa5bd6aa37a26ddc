"""The OpenAPI 3.1 document of the routes, made from what they declare."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from headrace.doors.http.api.errors import CODES, STATUSES
from headrace.doors.http.api.operations import Endpoint, Operation, Refusal, paths_of
from headrace.doors.http.api.responses import JSON
from headrace.doors.http.api.schemas import Named, Shape, object_of, text
from headrace.doors.http.server import rights
from headrace.version import VERSION

NAME = re.compile(r"\{(\w+)\}")
# What the names in paths stand for.
PATH_PARAMETERS: Mapping[str, str] = {
    "user": "The user's name.",
    "topic": "A topic's name.",
    "queue": "A queue's name; `#` is written `%23`.",
    "partition": "A partition's number.",
    "offset": "An offset.",
    "group": "A group's name.",
    "app": "An application's name.",
    "id": "The id, as another answer has it.",
}
ERROR = Named(
    "Error",
    object_of(
        {
            "error": text("A code for programs, as in `UnknownTopic`."),
            "message": text("A sentence for people: what is wrong, and what to do."),
        }
    ),
)
# What any request may be answered with, beside what its operation declares.
ANYWHERE: Mapping[int, str] = {
    **CODES,
    400: "`BadRequest`: a field or parameter is missing, unknown, or not what it may be.",
    401: "`Unauthenticated`: the client did not show who it is, or not rightly.",
    403: "`NotAuthorized`: the client lacks a right. `ForeignOrigin`: a page of another site asks.",
    415: "`UnsupportedMediaType`: the body is called anything but JSON.",
    429: "`QuotaExceeded`: a quota is used up. Try again after the seconds of `Retry-After`.",
    503: "The log could not append, or this node does not lead: try again.",
}
DESCRIPTION = (
    "Topics, groups, queues, clients, figures and all else of a broker. Unknown fields and parameters are refused. "
    "Times are milliseconds since 1970. Bytes are text where they are UTF-8, and otherwise Base64 under the name with "
    "`_base64`."
)


async def document(endpoints: Iterable[Endpoint]) -> bytes:
    """The document in JSON. There are turns of the loop between: it takes longer than one may."""
    components: dict[str, Any] = {}
    parts = []
    for path, methods in paths_of(endpoints).items():
        described = {method.lower(): _describe(each, components) for method, each in methods.items()}
        parts.append(f"{json.dumps(path)}: {json.dumps(described)}")
        await asyncio.sleep(0)
    head = {
        "openapi": "3.1.0",
        "info": {"title": "Headrace", "version": VERSION, "description": DESCRIPTION},
        "components": {"schemas": components},
    }
    return f'{json.dumps(head)[:-1]}, "paths": {{{", ".join(parts)}}}}}\n'.encode()


def _describe(endpoint: Endpoint, components: dict[str, Any]) -> dict[str, Any]:
    each = endpoint.operation
    described: dict[str, Any] = {
        "operationId": endpoint.name,
        "summary": each.summary,
        "tags": [_tag(each.path)],
        "x-headrace-rights": rights.describe(each.rights),
        "parameters": [
            *(
                {
                    "name": name,
                    "in": "path",
                    "required": True,
                    "schema": {"type": "string"},
                    "description": PATH_PARAMETERS[name],
                }
                for name in NAME.findall(each.path)
            ),
            *(
                {
                    "name": query.name,
                    "in": "query",
                    "required": query.required,
                    "schema": _resolve(query.schema, components),
                }
                for query in each.query
            ),
        ],
        "responses": {
            str(each.status): {
                "description": "Done.",
                "content": {each.answer_type: {"schema": _resolve(each.answer, components)}},
            },
            **{
                str(status): {
                    "description": doc,
                    "content": {JSON: {"schema": _resolve(ERROR, components)}},
                }
                for status, doc in sorted(_refusals(each).items())
            },
        },
    }
    if each.doc:
        described["description"] = each.doc
    if each.body is not None:
        described["requestBody"] = {"content": {each.body_type: {"schema": _resolve(each.body, components)}}}
    if each.command:
        described["x-headrace-command"] = f"headrace {each.command}"
    return described


def _tag(path: str) -> str:
    """The part of the API that a path belongs to."""
    literal = [part for part in path.split("/") if part and not part.startswith("{") and part != "v1"]
    return literal[1] if literal[0] == "topics" and "queues" in literal else literal[0]


def status_of(error: type | Refusal) -> tuple[int, str]:
    """The status and the code of an error that an operation declares."""
    if isinstance(error, Refusal):
        return error.status, error.code
    return next((status for kind, status in STATUSES if issubclass(error, kind)), 500), error.__name__


def _refusals(each: Operation) -> dict[int, str]:
    """By status, the codes that are answered under it."""
    codes: dict[int, list[str]] = {}
    for error in each.errors:
        status, code = status_of(error)
        codes.setdefault(status, []).append(f"`{code}`")
    if each.method != "GET" and each.body_type == JSON:
        codes.setdefault(415, []).append("`UnsupportedMediaType`")
    found = {status: ", ".join(names) + "." for status, names in codes.items()}
    for status, doc in ANYWHERE.items():
        found[status] = f"{found[status]} {doc}" if status in found else doc
    return found


def _resolve(shape: Shape | Any, components: dict[str, Any]) -> Any:
    """A shape with references in the place of those that have names, which go into the components."""
    if isinstance(shape, Named):
        if shape.name not in components:
            components[shape.name] = {}
            components[shape.name] = _resolve(shape.schema, components)
        return {"$ref": f"#/components/schemas/{shape.name}"}
    if isinstance(shape, Mapping):
        return {name: _resolve(value, components) for name, value in shape.items()}
    if isinstance(shape, list):
        return [_resolve(each, components) for each in shape]
    return shape


def table(endpoints: Iterable[Endpoint]) -> str:
    """The routes as the Markdown table of `docs/rest-api.md`."""
    lines = ["| request | does | right | command |", "| --- | --- | --- | --- |"]
    for each in (endpoint.operation for endpoint in endpoints):
        path = NAME.sub(lambda name: name[1].upper(), each.path)
        command = f"`headrace {each.command}`" if each.command else ""
        lines.append(f"| `{each.method} {path}` | {each.summary} | {rights.describe(each.rights)} | {command} |")
    return "\n".join(lines) + "\n"
