"""What a setting is: a field of a frozen dataclass, with the sentence that explains it and the values that fit.

Each layer and each door has a class of its own settings (`log/settings.py`, `doors/kafka/settings.py`), and is given
nothing else. `headrace.config` composes them. The modules that hold them are light: a door that is off is not imported
for its settings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import Field, FrozenInstanceError, dataclass, field, fields
from typing import Any, ClassVar, NoReturn, TypeVar, dataclass_transform

from headrace.addresses import parse_address
from headrace.errors import ConfigError

# The largest whole number that the log's formats and Kafka's protocol can carry.
INT64_MAX = (1 << 63) - 1
HOST_PORT = "HOST:PORT"
# What a value is to Python, and what errors call it, by the field's annotation.
TYPES: dict[str, tuple[type, str]] = {
    "str": (str, "text"),
    "int": (int, "a whole number"),
    "bool": (bool, "true or false"),
}

S = TypeVar("S", bound="Settings")


def setting(
    default: Any,
    help: str,
    *,
    least: int | None = None,
    most: int = INT64_MAX,
    choices: tuple[str, ...] = (),
    parse: Callable[[str], object] | None = None,
    metavar: str = "",
    address: bool = False,
    secret: bool = False,
) -> Any:
    """A field with the sentence that explains it and the values that make sense for it. Numbers are at least 0 (or the
    default, if that is lower) unless `least` is given. `parse` raises ConfigError for a text that does not fit.
    `metavar` stands for the value in `--help`. An address is that of a listener. A secret is shown nowhere."""
    if least is None and isinstance(default, int):
        least = min(0, default)
    if address:
        parse, metavar = parse_address, HOST_PORT
    return field(
        default=default,
        repr=not secret,
        metadata={
            "help": help,
            "least": least,
            "most": most,
            "choices": choices,
            "parse": parse,
            "metavar": metavar,
            "address": address,
            "secret": secret,
        },
    )


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Settings:
    """Fields that were made by `setting`; values that do not fit are refused.

    Each class below is a frozen dataclass with keywords only. Its methods stand here, once: generated for every class,
    with all that it inherits, they would take a tenth of the time that a broker takes to start.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    TITLE: ClassVar[str] = "Other settings"
    """Over its own settings, where settings are listed."""

    def __init_subclass__(cls) -> None:
        dataclass(init=False, repr=False, eq=False)(cls)

    def __init__(self, **values: Any) -> None:
        known = {each.name: each.default for each in fields(self)}
        if unknown := [name for name in values if name not in known]:
            raise TypeError(f"{type(self).__name__} has no setting {', '.join(map(repr, unknown))}")
        vars(self).update(known | values)
        self.__post_init__()

    def __post_init__(self) -> None:
        for known in fields(self):
            check(known, getattr(self, known.name), known.name)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise FrozenInstanceError(f"cannot assign to setting {name!r}")

    def __delattr__(self, name: str) -> NoReturn:
        raise FrozenInstanceError(f"cannot delete setting {name!r}")

    def __eq__(self, other: object) -> bool:
        return vars(self) == vars(other) if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(vars(self).values()))

    def __repr__(self) -> str:
        shown = (f"{each.name}={getattr(self, each.name)!r}" for each in fields(self) if each.repr)
        return f"{type(self).__name__}({', '.join(shown)})"

    def part(self, kind: type[S]) -> S:
        """Of these settings, those of one layer or door."""
        return kind(**{each.name: getattr(self, each.name) for each in fields(kind)})


def convert(known: Field[Any], value: Any, source: str) -> Any:
    """The value as the field's type, from the text of a flag or variable or the typed value of a TOML file."""
    # Annotations are strings in the modules of settings.
    if known.type == "str" or not isinstance(value, str):
        return value
    if known.type == "bool":
        lowered = value.lower()
        if lowered in ("true", "yes", "on", "1"):
            return True
        if lowered in ("false", "no", "off", "0"):
            return False
        raise ConfigError(f"{source}: {value!r} is neither true nor false")
    try:
        return int(value.replace("_", ""))
    except ValueError:
        raise ConfigError(f"{source}: {value!r} is not a whole number") from None


def check(known: Field[Any], value: Any, source: str) -> Any:
    """The value itself, if it makes sense for the field. The error names its source."""
    wanted, description = TYPES[str(known.type)]
    if type(value) is not wanted:
        raise ConfigError(f"{source}: {value!r} is not {description}")
    limits = known.metadata
    if wanted is int and not limits["least"] <= value <= limits["most"]:
        bound = f"at least {limits['least']}" if value < limits["least"] else f"at most {limits['most']}"
        raise ConfigError(f"{source}: {value} is out of range. It must be {bound}.")
    if limits["choices"] and value not in limits["choices"]:
        raise ConfigError(f"{source}: {value!r} is not one of {', '.join(limits['choices'])}")
    if limits["parse"] is not None:
        try:
            limits["parse"](value)
        except ConfigError as error:
            raise ConfigError(f"{source}: {error}") from None
    return value
