"""Answers of the API, compared with what `/openapi.json` says that they look like."""

from __future__ import annotations

import asyncio
import functools
import json
from typing import Any

from jsonschema import Draft202012Validator

from headrace.doors.http.api.openapi import document
from headrace.doors.http.api.routes import ENDPOINTS

# To judge a page of megabytes takes longer than to make it.
JUDGED_BYTES = 65_536


@functools.cache
def described() -> dict[str, Any]:
    """The document."""
    found: dict[str, Any] = json.loads(asyncio.run(document(ENDPOINTS)))
    return found


@functools.cache
def validator(path: str, method: str, status: int) -> Draft202012Validator:
    """Of the answers of an operation under a status."""
    responses = described()["paths"][path][method.lower()]["responses"]
    assert str(status) in responses, f"{method} {path} does not declare the status {status}"
    (content,) = responses[str(status)]["content"].values()
    return Draft202012Validator({**content["schema"], "components": described()["components"]})


def path_of(target: str, method: str) -> str | None:
    """The path of the document that a request means; None where there is none."""
    given = target.partition("?")[0].split("/")
    fitting = [
        path
        for path, methods in described()["paths"].items()
        if method.lower() in methods
        and len(path.split("/")) == len(given)
        and all(part.startswith("{") or part == each for part, each in zip(path.split("/"), given, strict=True))
    ]
    # Where several fit, a word counts before a name.
    return max(fitting, key=lambda path: [not part.startswith("{") for part in path.split("/")], default=None)


def check_answer(method: str, target: str, status: int, raw: bytes) -> None:
    """Fail unless an answer is as the document has it."""
    path = path_of(target, method)
    if path is not None and len(raw) <= JUDGED_BYTES:
        errors = list(validator(path, method, status).iter_errors(json.loads(raw)))
        assert not errors, f"{method} {path}, {status}: {errors[0].message} at {errors[0].json_path}\n{raw[:2000]!r}"
