"""A new project: its files, made of templates and of what was asked for.

What a scenario needs of a project is read from its values (batches, exactly once, order, one try), not from its name: a
scenario that is added gets projects without a change here.
"""

from __future__ import annotations

import keyword
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from string import Template

from headrace.errors import ConfigError
from headrace.sdk.dead_letter import topic_of
from headrace.sdk.names import QUEUE_MAX, TOPIC_MAX, check_name
from headrace.sdk.scenario import NSQ, Scenario

KEY_MAX = 30
# Names that a project's own code imports, or that stand in the way of its tests.
TAKEN = frozenset(("headrace", "msgspec", "pydantic", "pytest", "tests", "test"))


@dataclass(frozen=True, slots=True)
class Payload:
    """How the messages of a project are declared, and what its code and tests say of one."""

    requirement: str = ""
    empty: str = "not event.{key}"
    full: str = "event.{key}"
    empty_reason: str = "no {key}"
    empty_sample: str = 'Event({key}="")'
    sample: str = 'Event({key}=thing, text=f"{{number}}")'
    key_field: str = ', key="{key}"'
    ordered_by: str = ', ordered_by="{key}"'
    publish_key: str = ""
    line: str = '{{"{key}": "a", "text": "hello"}}'
    line_form: str = ", which are JSON"
    key_says: str = "An event's key is its field `{key}`: events of one `{key}` keep their order."


PAYLOADS: Mapping[str, Payload] = {
    "dataclass": Payload(),
    "msgspec": Payload(requirement="msgspec>=0.19"),
    "pydantic": Payload(requirement="pydantic>=2.10"),
    "bytes": Payload(
        empty="not event",
        full="event",
        empty_reason="an empty message",
        empty_sample='b""',
        sample='f"{{thing}} {{number}}".encode()',
        key_field="",
        ordered_by="",
        publish_key=', key=event.partition(b" ")[0]',
        line="a hello",
        line_form="",
        key_says="An event's key is its first word: events of one key keep their order.",
    ),
}


@dataclass(frozen=True, slots=True)
class ProjectPlan:
    """What was asked for."""

    app: str
    topic: str
    scenario: Scenario
    payload: str
    key: str

    def __post_init__(self) -> None:
        most = QUEUE_MAX if self.scenario.wire == NSQ else TOPIC_MAX
        try:
            # Its groups are called after it.
            check_name("application", self.app, QUEUE_MAX)
            check_name("topic", self.topic, most)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        package = self.package
        if not package.isidentifier() or keyword.iskeyword(package):
            raise ConfigError(f"{self.app!r} gives no valid name of a Python package ({package!r}). Use another name.")
        if package in TAKEN or package in sys.stdlib_module_names:
            raise ConfigError(f"a package {package!r} would hide an existing one. Give the application another name.")
        if not re.fullmatch(r"[a-z][a-z0-9_]*", self.key) or keyword.iskeyword(self.key) or self.key == "text":
            raise ConfigError(f"--key must be in lower case, begin with a letter, and not be 'text' (got {self.key!r})")
        if len(self.key) > KEY_MAX:
            raise ConfigError(f"--key must have at most {KEY_MAX} characters (got {self.key!r})")

    @property
    def package(self) -> str:
        """Its name in Python."""
        return re.sub(r"[^a-z0-9]+", "_", self.app.lower()).strip("_")

    @property
    def project(self) -> str:
        """Its name as a distribution, and as a folder."""
        return self.package.replace("_", "-")


def consumer(wanted: ProjectPlan) -> dict[str, str]:
    """The files of a project that reads a topic: path -> content."""
    tuning = wanted.scenario.tuning
    shape = "exactly_once" if tuning.exactly_once else "batch" if tuning.batch > 1 else "each"
    tests = [] if wanted.payload == "bytes" else ["unreadable"]
    if shape == "each":
        tests.append("once" if tuning.attempts == 1 else "again")
        tests += ["dead"] if tuning.attempts > 1 and not tuning.private else []
        tests += ["ordered"] if tuning.ordered else []
    settings = {"TOPIC": (wanted.topic, "what is read")}
    if shape == "exactly_once":
        settings["OUTPUT"] = (_output(wanted), "where what becomes of it is sent")
    if shape == "batch":
        settings["BATCH"] = (str(tuning.batch), "the most messages that the handler is given at once")
    else:
        settings["WORKERS"] = (str(tuning.workers), "handlers that run at a time")
    values = _values(wanted, f"{wanted.app}: reads {wanted.topic} as {wanted.scenario.name}")
    if not tuning.ordered:
        values["ordered_by"] = ""
    values["settings"] = "".join(f"| `{name}` | `{value}` | {says} |\n" for name, (value, says) in settings.items())
    values["outcomes"] = _outcomes(wanted)
    values["more_tests"] = _tests(tests, values)
    found = _common(wanted, values)
    package = f"src/{wanted.package}"
    for name in ("app.py", "work.py", "config.py"):
        found[f"{package}/{name}"] = _render(f"consumer/{shape}/{name}", values)
    found[f"{package}/__main__.py"] = _render("consumer/__main__.py", values)
    found["tests/test_app.py"] = _render(f"consumer/{shape}/test_app.py", values)
    found["README.md"] = _render("consumer/README.md", values)
    return found


def producer(wanted: ProjectPlan) -> dict[str, str]:
    """The files of a project that sends to a topic: path -> content."""
    values = _values(wanted, f"{wanted.app}: sends to {wanted.topic}")
    typed = wanted.payload != "bytes"
    values["sdk_names"] = "App, BadPayload, PublishFailed" if typed else "App, PublishFailed"
    values["more_tests"] = _tests(["bad_line"] if typed else [], values)
    found = _common(wanted, values)
    for name in ("app.py", "config.py", "__main__.py"):
        found[f"src/{wanted.package}/{name}"] = _render(f"producer/{name}", values)
    found["tests/test_app.py"] = _render("producer/test_app.py", values)
    found["README.md"] = _render("producer/README.md", values)
    return found


def write(folder: Path, contents: Mapping[str, str], *, force: bool = False) -> None:
    """Write files under a folder: all, or none where one is there already. Raises ConfigError."""
    there = [name for name in contents if (folder / name).exists()]
    if there and not force:
        named = ", ".join(there[:3]) + (f" and {len(there) - 3} more" if len(there) > 3 else "")
        raise ConfigError(f"{folder} has {named}: nothing was written. Choose another --dir, or use --force.")
    try:
        for name, content in contents.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(content, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{error.filename} cannot be written: {error.strerror}") from None


def _values(wanted: ProjectPlan, description: str) -> dict[str, str]:
    payload, tuning = PAYLOADS[wanted.payload], wanted.scenario.tuning
    payload_values = {
        name: getattr(payload, name).format(key=wanted.key)
        for name in Payload.__dataclass_fields__
        if name != "requirement"
    }
    return {
        **payload_values,
        "app": wanted.app,
        "topic": wanted.topic,
        "output": _output(wanted),
        "scenario": wanted.scenario.name,
        "meaning": wanted.scenario.meaning,
        "package": wanted.package,
        "project": wanted.project,
        "key": wanted.key,
        "description": description,
        "requirement": f', "{payload.requirement}"' if payload.requirement else "",
        "workers": str(tuning.workers),
        "batch": str(tuning.batch),
    }


def _output(wanted: ProjectPlan) -> str:
    return f"{wanted.topic[: TOPIC_MAX - 5]}-done"


def _outcomes(wanted: ProjectPlan) -> str:
    tuning = wanted.scenario.tuning
    if tuning.private:
        return "whatever it raises, the message is not delivered to this instance again"
    rejected = "and all of its batch goes" if tuning.batch > 1 and not tuning.exactly_once else "and it goes"
    return (
        "`raise Retry(reason, after=seconds)` and it comes again; any other\nexception is a `Retry` too; "
        f"`raise Reject(reason)` {rejected} to the dead letters, `{topic_of(wanted.topic, wanted.app)}`,\n"
        "from where `headrace redrive` brings it back"
    )


def _tests(names: list[str], values: Mapping[str, str]) -> str:
    return "".join(_render(f"fragments/{name}", values) for name in names)


def _common(wanted: ProjectPlan, values: Mapping[str, str]) -> dict[str, str]:
    return {
        "pyproject.toml": _render("common/pyproject.toml", values),
        "Dockerfile": _render("common/Dockerfile", values),
        ".gitignore": _render("common/gitignore", values),
        ".dockerignore": _render("common/dockerignore", values),
        f"src/{wanted.package}/__init__.py": _render("common/__init__.py", values),
        f"src/{wanted.package}/events.py": _render(f"payload/{wanted.payload}.py", values),
    }


def _render(name: str, values: Mapping[str, str]) -> str:
    text = (files("headrace.cli.new") / "templates" / f"{name}.template").read_text(encoding="utf-8")
    return Template(text).substitute(values)
