"""The fields of the topic setting `index`: what a topic's messages can be searched for without reading all of them."""

from __future__ import annotations

from headrace.format.terms import HEADER, ID, KEY, TAGS

INDEX = "index"
ROCKETMQ_INDEX = f"{KEY},{ID}"
"""Of topics that RocketMQ's clients make: its KEYS, and its unique keys."""
FIELDS_MAX = 8
FIELD_CHARACTERS_MAX = 100


def check_index(text: str) -> str | None:
    """What is wrong with a value of the setting, or None."""
    fields = [field.strip() for field in text.split(",")] if text.strip() else []
    if len(fields) > FIELDS_MAX:
        return f"it must have at most {FIELDS_MAX} fields (got {len(fields)})"
    for field in fields:
        if field in (KEY, ID, TAGS):
            continue
        if not field.startswith(HEADER) or field == HEADER or not field.isprintable():
            return f"it must be a list of {KEY}, {ID}, {TAGS} and {HEADER}NAME (got {field!r})"
        if len(field) > FIELD_CHARACTERS_MAX:
            return f"the name of a field must have at most {FIELD_CHARACTERS_MAX} characters (got {len(field)})"
    return None


def fields_of(text: str) -> tuple[str, ...]:
    """The fields of a clean value."""
    return tuple(text.split(",")) if text else ()
