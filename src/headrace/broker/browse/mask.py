"""Fields of messages that are hidden from readers: what the topic setting `mask` names.

A mask names the key (`key`), headers (`header:NAME`) and fields of values that are JSON (`customer.card`,
`items[*].price`). A value that cannot be looked into, because it is no JSON or too large, is hidden as a whole: what
cannot be judged must not get out.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from headrace.broker.browse.view import JSON_MAX, Step, View, parse_path
from headrace.format.records import Record

HIDDEN = "***"
HEADER = "header:"
NAMES_MAX = 100


class Mask(NamedTuple):
    """What is hidden."""

    key: bool
    headers: frozenset[str]
    paths: tuple[tuple[Step, ...], ...]

    def record(self, partition: int, record: Record) -> Record:
        """A record without what is hidden."""
        view = View(partition, record)
        self.apply(view)
        return view.offset, view.timestamp, view.key, view.value, list(view.headers)

    def apply(self, view: View) -> None:
        """Hide it in a message."""
        if self.key and view.key is not None:
            view.key = HIDDEN.encode()
            view.hidden = True
        if self.headers and any(name in self.headers for name, _ in view.headers):
            view.headers = [
                (name, HIDDEN.encode() if name in self.headers else content) for name, content in view.headers
            ]
            view.hidden = True
        if self.paths and view.value is not None:
            self._apply_to_value(view)

    def _apply_to_value(self, view: View) -> None:
        value = view.value or b""
        try:
            found = json.loads(value) if len(value) <= JSON_MAX else None
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict | list):
            view.replace_value(HIDDEN.encode())
            return
        changed = [_hide(found, path) for path in self.paths]
        if any(changed):
            view.replace_value(json.dumps(found, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace"))


def _hide(value: object, path: Sequence[Step]) -> bool:
    """Hide what stands at a path; whether anything does."""
    step, rest = path[0], path[1:]
    places: list[object] = []
    if isinstance(value, dict) and isinstance(step, str):
        places = [step] if step in value else []
    elif isinstance(value, list) and not isinstance(step, str):
        places = [at for at in range(len(value)) if step is None or at == step]
    hidden = False
    for place in places:
        if rest:
            hidden |= _hide(value[place], rest)  # type: ignore[index]
        else:
            value[place] = HIDDEN  # type: ignore[index]
            hidden = True
    return hidden


@lru_cache(maxsize=1_024)
def mask_of(setting: str) -> Mask | None:
    """The mask of a topic with this setting. Raises ValueError."""
    names = [each.strip() for each in setting.split(",") if each.strip()]
    if not names:
        return None
    if len(names) > NAMES_MAX:
        raise ValueError(f"it must have at most {NAMES_MAX} names (got {len(names)})")
    headers = frozenset(each.removeprefix(HEADER) for each in names if each.startswith(HEADER))
    paths = tuple(parse_path(each) for each in names if each != "key" and not each.startswith(HEADER))
    return Mask("key" in names, headers, paths)


def check_mask(setting: str) -> str | None:
    """What is wrong with such a setting."""
    try:
        mask_of(setting)
    except ValueError as error:
        return str(error)
    return None
