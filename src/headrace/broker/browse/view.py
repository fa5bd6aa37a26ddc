"""A message as conditions and readers see it. What its value is in JSON is found out once, where it is asked."""

from __future__ import annotations

import json
from collections.abc import Sequence

from headrace.format.records import Record

# A value that is larger is not taken apart: that would hold the loop.
JSON_MAX = 262_144
MISSING = object()
"""In the place of what is not there; JSON's null is."""

Step = str | int | None
"""Of a path: a field's name, an element's number, or None for each element."""


class View:
    """One message."""

    __slots__ = ("_json", "headers", "hidden", "key", "offset", "partition", "size", "timestamp", "value")

    def __init__(self, partition: int, record: Record) -> None:
        self.partition = partition
        self.offset, self.timestamp, self.key, self.value, headers = record
        self.headers: Sequence[tuple[str, bytes | None]] = headers
        self.size = len(self.key or b"") + len(self.value or b"")
        self.hidden = False
        """The value, or a part of the message, is masked."""
        self._json: object = None

    @property
    def json(self) -> object:
        """The value as JSON; MISSING where it is none."""
        if self._json is None:
            self._json = _load(self.value)
        return self._json

    def replace_value(self, value: bytes | None) -> None:
        """Another value in the place of a masked one."""
        self.value = value
        self._json = None
        self.hidden = True

    def header(self, name: str) -> bytes | None:
        """The first header of that name."""
        return next((content for each, content in self.headers if each == name), None)


def _load(value: bytes | None) -> object:
    if value is None or len(value) > JSON_MAX:
        return MISSING
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        return MISSING
    # `None` stands for what was not looked at yet.
    return MISSING if found is None else found


def parse_path(text: str) -> tuple[Step, ...]:
    """A path such as `customer.cards[0].number` or `items[*].price`. Raises ValueError."""
    steps: list[Step] = []
    for part in text.removeprefix("$").removeprefix(".").split("."):
        name, *indexes = part.split("[")
        if name:
            steps.append(name)
        elif not indexes:
            raise ValueError(f"{text!r} is not a path: fields are separated by single dots, as in customer.name")
        for each in indexes:
            number = each.removesuffix("]")
            if not each.endswith("]") or not (number == "*" or (number.isdecimal() and len(number) < 10)):
                raise ValueError(f"{text!r} is not a path: an element is [0], all are [*]")
            steps.append(None if number == "*" else int(number))
    return tuple(steps)


def find(value: object, path: Sequence[Step]) -> object:
    """What stands at a path in JSON; MISSING where nothing does. `[*]` is the first element that has it."""
    for at, step in enumerate(path):
        if step is None:
            elements = value if isinstance(value, list) else []
            found = (find(each, path[at + 1 :]) for each in elements)
            return next((each for each in found if each is not MISSING), MISSING)
        if isinstance(step, int):
            value = value[step] if isinstance(value, list) and step < len(value) else MISSING
        else:
            value = value.get(step, MISSING) if isinstance(value, dict) else MISSING
        if value is MISSING:
            break
    return value
