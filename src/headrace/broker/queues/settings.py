"""The settings of a queue: what may be set, what fits, and the language of its filter.

A filter is conditions joined by `and`: `region = eu`, `region != eu`, `region in (eu, us)`, `region not in (eu)`,
`has region`, `not has region`; `region` is a header's name, or `$key` for the message's key. Names and values may stand
in double quotes. RocketMQ's tags are the header `TAGS`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from headrace.broker.internal import check_change
from headrace.broker.queues.delivery import HEADER, KEY
from headrace.broker.queues.ledger import ATTEMPTS_MAX, TIMEOUT_MAX_MS
from headrace.errors import InvalidQueue, InvalidQueueSetting

EPHEMERAL = "#ephemeral"
NAME_MAX = 255
NAME = re.compile(rf"[.a-zA-Z0-9_-]{{1,{NAME_MAX}}}(#ephemeral)?\Z")
BACKOFF_STEPS_MAX = 100
DELAY_MAX_MS = 10 * 365 * 86_400_000
LOOKAHEAD_LIMIT = 1_000_000
FILTER_CHARACTERS_MAX = 4_096

# What it looks at, the header's name, the values that fit (None: any), whether it is turned around.
Condition = tuple[int, str, frozenset[bytes] | None, bool]


def check_name(name: str) -> None:
    """Raise InvalidQueue unless the name may be a queue's."""
    if not NAME.match(name) or len(name) > NAME_MAX:
        raise InvalidQueue(
            f"a queue's name must have 1 to {NAME_MAX} of the characters .a-zA-Z0-9_-, with {EPHEMERAL} at the end if "
            f"it is not to be stored (got {name[:80]!r})"
        )


def check_settings(settings: QueueSettings) -> None:
    """Raise InvalidTopic where dead letters would go to a topic that is not the clients'."""
    if settings.dead_letter_topic:
        check_change(settings.dead_letter_topic, "a dead-letter topic")


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """What can be set for a queue; every change is live."""

    timeout_ms: int = 60_000
    """A message that is not settled this long after its delivery is ready again (its visibility timeout)."""
    timeout_max_ms: int = 900_000
    """However often a delivery is touched, it times out after this long."""
    max_attempts: int = 0
    """After this many deliveries without success a message is dead; 0: never."""
    backoff_ms: tuple[int, ...] = ()
    """The retry ladder: the delay after the first failed attempt, the second, ...; the last one repeats. It is used
    where the consumer gives no delay of its own."""
    dead_letter_topic: str = ""
    """Where dead messages go; by default TOPIC.QUEUE.dead."""
    filter: str = ""
    """Which messages the queue takes; the others are settled unseen."""
    order_by_key: bool = False
    """At most one unsettled message of a key at a time; the others of that key wait for it."""
    dead_key: str = "release"
    """What a dead message does to its key: `release` lets the next one go, `park` sends those that wait after it."""
    lookahead_max: int = 10_000
    """How many messages may wait for others of their key before the queue stops looking further."""
    deliveries: float = 0.0
    """The share of messages whose deliveries and settlements are noted in __deliveries: 0 none, 1 all."""

    def __post_init__(self) -> None:
        _within("timeout_ms", self.timeout_ms, 1, TIMEOUT_MAX_MS)
        _within("timeout_max_ms", self.timeout_max_ms, 1, TIMEOUT_MAX_MS)
        _within("max_attempts", self.max_attempts, 0, ATTEMPTS_MAX)
        _within("lookahead_max", self.lookahead_max, 1, LOOKAHEAD_LIMIT)
        if len(self.backoff_ms) > BACKOFF_STEPS_MAX:
            steps = len(self.backoff_ms)
            raise InvalidQueueSetting(f"backoff_ms must have at most {BACKOFF_STEPS_MAX} steps (got {steps})")
        for step in self.backoff_ms:
            _within("a step of backoff_ms", step, 0, DELAY_MAX_MS)
        if self.timeout_ms > self.timeout_max_ms:
            raise InvalidQueueSetting(
                f"timeout_ms ({self.timeout_ms}) is above timeout_max_ms ({self.timeout_max_ms}): raise the latter"
            )
        if self.dead_key not in ("release", "park"):
            raise InvalidQueueSetting(f"dead_key must be release or park (got {self.dead_key!r})")
        if not 0.0 <= self.deliveries <= 1.0:
            raise InvalidQueueSetting(f"deliveries must be a share from 0 to 1 (got {self.deliveries})")
        parse_filter(self.filter)

    def changed(self, changes: Mapping[str, Any]) -> QueueSettings:
        """These settings with some changed; text is read as the setting's type. Raises InvalidQueueSetting."""
        known = {each.name: each for each in fields(self)}
        converted: dict[str, Any] = {}
        for name, value in changes.items():
            if name not in known:
                raise InvalidQueueSetting(f"a queue has no setting {name!r}. Use one of {', '.join(known)}.")
            converted[name] = _convert(name, getattr(self, name), value)
        return replace(self, **converted)

    def as_json(self) -> dict[str, Any]:
        """As JSON has it."""
        return {**asdict(self), "backoff_ms": list(self.backoff_ms)}


def _within(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise InvalidQueueSetting(f"{name} cannot be {value}: it must be {low} to {high}")


def _convert(name: str, now: Any, value: Any) -> Any:
    try:
        if isinstance(now, bool):
            if isinstance(value, str) and value.lower() in ("true", "false"):
                return value.lower() == "true"
            if not isinstance(value, bool):
                raise ValueError("it must be true or false")
            return value
        if isinstance(now, tuple):
            steps = [part for part in value.split(",") if part.strip()] if isinstance(value, str) else value
            if isinstance(steps, bool) or not isinstance(steps, list | tuple):
                raise ValueError("it is a list of whole numbers")
            return tuple(_whole(step) for step in steps)
        if isinstance(now, int):
            return _whole(value)
        if isinstance(now, float):
            if isinstance(value, bool):
                raise ValueError("it must be a number")
            return float(value)
        if not isinstance(value, str):
            raise ValueError("it must be text")
        return value
    except (TypeError, ValueError) as error:
        raise InvalidQueueSetting(f"{name} cannot be {value!r}: {error}") from None


def _whole(value: Any) -> int:
    if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
        raise ValueError("it must be a whole number")
    return int(value)


_TOKEN = re.compile(r'\s*("(?:[^"\\]|\\.)*"|!=|=|\(|\)|,|[^\s=!(),"]+)')


def parse_filter(text: str) -> list[Condition]:
    """The conditions of a filter, all of which a message must meet. Raises InvalidQueueSetting."""
    if len(text) > FILTER_CHARACTERS_MAX:
        raise InvalidQueueSetting(f"a filter must have at most {FILTER_CHARACTERS_MAX} characters (got {len(text)})")
    tokens = _tokens(text)
    conditions: list[Condition] = []
    at = 0

    def take(what: str) -> str:
        nonlocal at
        if at >= len(tokens):
            raise InvalidQueueSetting(f"the filter {text!r} ends where {what} should stand")
        at += 1
        return tokens[at - 1]

    while at < len(tokens):
        if conditions and take("'and'").lower() != "and":
            raise InvalidQueueSetting(f"the filter {text!r} has {tokens[at - 1]!r} where 'and' should stand")
        word = take("a header's name")
        negated = False
        if word.lower() == "not" and at < len(tokens) and tokens[at].lower() == "has":
            negated = True
            word = take("'has'")
        if word.lower() == "has":
            conditions.append(_condition(take("a header's name"), None, negated))
            continue
        operator = take("=, !=, in or not in").lower()
        if operator == "not":
            negated = True
            operator = take("'in'").lower()
        if operator == "in":
            if take("'('") != "(":
                raise InvalidQueueSetting(f"the filter {text!r} needs a list in brackets after 'in'")
            values = [_unquote(take("a value"))]
            while (separator := take("',' or ')'")) == ",":
                values.append(_unquote(take("a value")))
            if separator != ")":
                raise InvalidQueueSetting(f"the filter {text!r} has {separator!r} where ',' or ')' should stand")
        elif operator in ("=", "!="):
            negated = operator == "!="
            values = [_unquote(take("a value"))]
        else:
            raise InvalidQueueSetting(f"the filter {text!r} has {operator!r} where =, !=, in or not in should stand")
        conditions.append(_condition(word, values, negated))
    return conditions


def _tokens(text: str) -> list[str]:
    tokens = []
    at = 0
    while text[at:].strip():
        match = _TOKEN.match(text, at)
        if match is None:
            raise InvalidQueueSetting(f"the filter {text!r} cannot be read from {text[at:]!r} on")
        tokens.append(match.group(1))
        at = match.end()
    return tokens


def _unquote(token: str) -> str:
    return re.sub(r"\\(.)", r"\1", token[1:-1]) if token.startswith('"') else token


def _condition(name: str, values: list[str] | None, negated: bool) -> Condition:
    fitting = None if values is None else frozenset(value.encode() for value in values)
    return (KEY, "", fitting, negated) if name == "$key" else (HEADER, _unquote(name), fitting, negated)
