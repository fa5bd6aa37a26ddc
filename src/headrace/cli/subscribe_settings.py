"""The settings of `headrace subscribe`, from flags and from TOML.

The top of the file has `topic`, `broker`, `name` and `metrics`, and the settings of all URLs. Each `[[hook]]` is one
URL, and its settings override those. Flags override both.
"""

from __future__ import annotations

import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.cli.durations import format_duration, parse_duration
from headrace.errors import HeadraceError
from headrace.redaction import redact_url
from headrace.sdk import Message
from headrace.sdk.names import check_name
from headrace.sdk.system import parse
from headrace.webhooks.event import Form, request_of
from headrace.webhooks.hook import ATTEMPTS_ORDERED, LADDER_ORDERED, Hook, Secrets

BROKER = "headrace://127.0.0.1"
PROCESS = ("topic", "broker", "name", "metrics")
TIMES = ("timeout", "batch_wait")
# The settings of a hook, with the types that TOML may give them.
KINDS: dict[str, tuple[type, ...]] = {
    "group": (str,),
    "secret_file": (str,),
    "secrets": (list,),
    "unsigned": (bool,),
    "headers": (dict,),
    "workers": (int,),
    "rate": (int, float),
    "timeout": (str,),
    "attempts": (int,),
    "ladder": (list,),
    "batch": (int,),
    "batch_wait": (str,),
    "structured": (bool,),
    "ordered": (bool,),
    "from_now": (bool,),
    "filter": (str,),
    "source": (str,),
    "type": (str,),
    "content_type": (str,),
    "ca_file": (str,),
    "cert_file": (str,),
    "key_file": (str,),
    "insecure": (bool,),
    "allow_private": (bool,),
}
FORM = ("source", "type", "content_type", "structured")
# An example of a message, for a dry run.
EXAMPLE_VALUE = b'{"hello": "world"}'


@dataclass(frozen=True, slots=True)
class Plan:
    """What the command will do."""

    topic: str
    broker: str
    name: str
    metrics: str
    hooks: list[Hook]


def read(
    file: str, urls: Sequence[str], flags: Mapping[str, Any], process: Mapping[str, str | None], secrets: Sequence[str]
) -> Plan:
    """The plan of a command. Raises a HeadraceError with the setting that is wrong, and where it stands."""
    top, tables = _file(file)
    given = {name: value for name, value in flags.items() if value is not None}
    if urls:
        tables = [{"url": url} for url in urls]
    elif not tables:
        raise HeadraceError("no URL to push to is specified. Give --url, or [[hook]] in --config.")
    if "group" in given and len(tables) > 1:
        raise HeadraceError("--group names the queue of one URL. Name those of several in --config, or leave it out.")
    common = {name: value for name, value in top.items() if name not in PROCESS}
    hooks = [_hook({**common, **table, **given}, secrets) for table in tables]
    whole = {name: process.get(name) or top.get(name) or "" for name in PROCESS}
    broker = whole["broker"] or BROKER
    if not whole["topic"]:
        raise HeadraceError("no topic is specified. Give TOPIC, or topic in --config.")
    try:
        check_name("topic", whole["topic"])
        parse(broker)
    except ValueError as error:
        raise HeadraceError(str(error)) from None
    return Plan(whole["topic"], broker, whole["name"], whole["metrics"], hooks)


def _file(file: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    if not file:
        return {}, []
    try:
        top = tomllib.loads(Path(file).read_text())
    except OSError as error:
        raise HeadraceError(f"--config {file} cannot be read: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise HeadraceError(f"--config {file} is not TOML: {error}") from None
    tables = top.pop("hook", [])
    if not isinstance(tables, list) or not all(isinstance(each, dict) for each in tables):
        raise HeadraceError(f"{file}: a hook is a table, [[hook]]")
    _check(file, top, {**KINDS, **dict.fromkeys(PROCESS, (str,))})
    for each in tables:
        _check(f"{file}, [[hook]]", each, {**KINDS, "url": (str,)})
        if "url" not in each:
            raise HeadraceError(f"{file}: a [[hook]] needs its url")
    return top, tables


def _check(where: str, given: Mapping[str, Any], known: Mapping[str, tuple[type, ...]]) -> None:
    for name, value in given.items():
        if name not in known:
            raise HeadraceError(f"{where}: there is no setting {name!r}. The settings are {', '.join(sorted(known))}.")
        if type(value) not in known[name]:
            wanted = " or ".join(kind.__name__ for kind in known[name])
            raise HeadraceError(f"{where}: {name} must be a {wanted} (got {value!r})")


def _hook(given: dict[str, Any], from_environment: Sequence[str]) -> Hook:
    url = given["url"]
    try:
        values = {name: value for name, value in given.items() if name in Hook.__dataclass_fields__}
        for name in TIMES:
            if name in values:
                values[name] = parse_duration(values[name]) / 1_000
        if "ladder" in values:
            values["ladder"] = tuple(parse_duration(str(step)) / 1_000 for step in values["ladder"])
        elif values.get("ordered"):
            values["ladder"] = LADDER_ORDERED
        if values.get("ordered"):
            values.setdefault("attempts", ATTEMPTS_ORDERED)
        if any(not isinstance(value, str) for value in values.get("headers", {}).values()):
            raise HeadraceError("the values of headers must be strings")
        form = Form(**{name: given[name] for name in FORM if name in given})
        return Hook(**{**values, "secrets": _secrets(given, from_environment), "form": form})
    except (HeadraceError, ValueError) as error:
        raise HeadraceError(f"{redact_url(url)}: {error}") from None


def _secrets(given: Mapping[str, Any], from_environment: Sequence[str]) -> Secrets | None:
    named = given.get("secrets") or []
    if not all(isinstance(each, str) for each in named):
        raise HeadraceError("secrets must be strings")
    file = given.get("secret_file")
    if given.get("unsigned"):
        if named or file:
            raise HeadraceError("a secret and `unsigned` exclude each other. Give one of them.")
        return None
    if not named and not file:
        named = list(from_environment)
    if not named and not file:
        raise HeadraceError(
            "no secret to sign with is specified. Give --secret-file or HEADRACE_WEBHOOK_SECRET, or --unsigned."
        )
    try:
        return Secrets(named, Path(file) if file else None)
    except OSError as error:
        raise HeadraceError(f"the secrets in {file} cannot be read: {error.strerror or error}") from None


def describe(plan: Plan) -> dict[str, Any]:
    """The plan, without secrets, and with an example of each request."""
    hooks = []
    for hook in plan.hooks:
        message = Message(plan.topic, EXAMPLE_VALUE, b"key", {"name": b"value"}, 0, 0, time.time_ns() // 1_000_000)
        request = request_of([message], hook.form, bool(hook.batch))
        hooks.append(
            {
                "url": redact_url(hook.url),
                "group": hook.group,
                "dead_letters": f"{plan.topic}.{hook.group}.dead",
                "signed_with": 0 if hook.secrets is None else len(hook.secrets),
                "workers": hook.workers,
                "rate": hook.rate,
                "timeout": format_duration(round(hook.timeout * 1_000)),
                "attempts": hook.attempts,
                "ladder": [format_duration(round(step * 1_000)) for step in hook.ladder],
                "batch": hook.batch,
                "ordered": hook.ordered,
                "from_now": hook.from_now,
                "filter": hook.filter,
                "example": {
                    "headers": {**request.headers, **dict.fromkeys(hook.headers, "....")},
                    "body": request.body.decode(),
                },
            }
        )
    return {"topic": plan.topic, "broker": plan.broker, "hooks": hooks}
