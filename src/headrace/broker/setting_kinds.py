"""A setting as Kafka has them: text with a type, a rule, a default and a sentence on what it does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from math import isfinite

from headrace.broker.settings import BrokerSettings
from headrace.errors import InvalidTopicConfig

LONG_MAX = (1 << 63) - 1
INT_MAX = (1 << 31) - 1

IGNORED = "Accepted and ignored: "
BROKER_DEFAULTS = BrokerSettings()


class Kind(IntEnum):
    """The type of a value, by Kafka's number for it."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


Check = Callable[[str], str | None]
"""What is wrong with a value of the right type, or None."""


def accept(text: str) -> None:
    """Every value of the right type will do."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of a topic, a group or the broker."""

    name: str
    kind: Kind
    default: str
    """The value where `config_field` is empty."""
    doc: str
    check: Check = accept
    config_field: str = ""
    """The broker's setting that gives the default."""
    broker_name: str = ""
    """Kafka's name of the broker's own setting behind this one."""

    @property
    def honoured(self) -> bool:
        """Whether the value changes what Headrace does."""
        return not self.doc.startswith(IGNORED)

    @property
    def choices(self) -> tuple[str, ...]:
        """The values that there are, where they can be listed."""
        if isinstance(self.check, OneOf):
            return self.check.values
        return ("true", "false") if self.kind is Kind.BOOLEAN else ()

    def default_in(self, config: BrokerSettings) -> str:
        """The value of a topic that does not say."""
        return str(getattr(config, self.config_field)) if self.config_field else self.default


def at_least(low: float, high: float = LONG_MAX) -> Check:
    def check(text: str) -> str | None:
        # Whole numbers as such: the largest and its neighbours are one float.
        value = int(text) if text.lstrip("-").isdecimal() else float(text)
        if value < low:
            return f"it must be at least {low}"
        return f"it must be at most {high}" if value > high else None

    return check


def none_or_at_least(low: int) -> Check:
    return lambda text: None if text == "-1" or int(text) >= low else f"it must be -1 (none), or at least {low}"


class OneOf:
    """The rule that a value is one of some."""

    def __init__(self, *values: str) -> None:
        self.values = values

    def __call__(self, text: str) -> str | None:
        return None if text in self.values else f"it must be {' or '.join(self.values)}"


one_of = OneOf


def as_list(text: str) -> list[str]:
    """The elements of a list value."""
    return [element.strip() for element in text.split(",")] if text.strip() else []


def clean_value(setting: Setting, text: str) -> str:
    """The value of a setting as it is stored. Raises InvalidTopicConfig where it makes no sense."""
    name = setting.name
    value = text.strip()
    kind = setting.kind
    if kind is Kind.LIST:
        value = ",".join(dict.fromkeys(as_list(text)))
    elif kind is Kind.BOOLEAN:
        value = value.lower()
        if value not in ("true", "false"):
            raise _invalid(name, text, "it must be true or false")
    elif kind is Kind.DOUBLE:
        try:
            finite = isfinite(float(value))
        except ValueError:
            finite = False
        if not finite:
            raise _invalid(name, text, "it must be a number")
    elif kind in (Kind.INT, Kind.LONG):
        bound = INT_MAX if kind is Kind.INT else LONG_MAX
        try:
            number = int(value)
        except ValueError:
            raise _invalid(name, text, "it must be a whole number") from None
        if not -bound - 1 <= number <= bound:
            raise _invalid(name, text, f"it must fit {32 if kind is Kind.INT else 64} bits")
        value = str(number)
    wrong = setting.check(value)
    if wrong:
        raise _invalid(name, text, wrong)
    return value


def _invalid(name: str, text: str, wrong: str) -> InvalidTopicConfig:
    return InvalidTopicConfig(f"{name} cannot be '{text}': {wrong}")


def set_by_operator(setting: Setting, config: BrokerSettings) -> bool:
    """Whether the broker's configuration differs from Headrace's own default."""
    return setting.default_in(config) != setting.default_in(BROKER_DEFAULTS)
