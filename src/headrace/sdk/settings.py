"""What of an application can be changed while it runs, and what its values may be.

Most are values of a subscription's tuning. What decides how a subscription is opened (its order, where it begins, whom
it is shared with, its timeout) is not among them: that needs a start.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.sdk.logs import LEVELS
from headrace.sdk.scenario import Tuning

PAUSE, LOG_LEVEL, LOG_SAMPLE = "pause", "log_level", "log_sample"
WORDS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}

Value = int | float | bool | str | tuple[float, ...]

MEANINGS: Mapping[str, str] = {
    "workers": "handlers that run at a time, in each instance",
    "rate": "messages a second, in each instance; 0: no limit",
    "credit": "messages that are fetched ahead and not yet settled, in each instance",
    "batch": "the most messages that a handler of lists is given at once",
    "batch_wait": "seconds that a handler of lists waits for its batch to fill",
    "attempts": "deliveries before a message is dead; 0: no limit",
    "ladder": "seconds before each further delivery, as 1,5,30; the last holds for all beyond",
    PAUSE: "true: take nothing and call no handler",
    LOG_LEVEL: f"{', '.join(LEVELS)}; of the lines about messages, for the whole application",
    LOG_SAMPLE: "the share, 0 to 1, of messages that went well and are logged all the same; of the whole application",
}
"""Every setting there is."""

WHOLE = frozenset({LOG_LEVEL, LOG_SAMPLE})
"""Those that an application has once, and not for each subscription."""


TUNED = frozenset(MEANINGS) - WHOLE - {PAUSE}
"""Those that are values of a subscription's tuning."""


class BadSetting(ValueError):
    """There is no such setting, or it cannot have that value."""


@dataclass(frozen=True, slots=True)
class Effective:
    """How a subscription is served at the moment."""

    tuning: Tuning
    paused: bool = False


def parse(name: str, text: str) -> Value:
    """A value as it is typed. Raises BadSetting."""
    try:
        if name == PAUSE:
            return check(name, WORDS[text.lower()])
        if name == LOG_LEVEL:
            return check(name, text.lower())
        if name == "ladder":
            return check(name, [float(step) for step in text.split(",")])
        if isinstance(getattr(_PLAIN, name, None), int):
            return check(name, int(text))
        return check(name, float(text))
    except (ValueError, KeyError) as error:
        if isinstance(error, BadSetting):
            raise
        _check_known(name)
        raise BadSetting(f"{name}={text}: it is {MEANINGS[name]}") from None


def check(name: str, value: Any) -> Value:
    """A value as it stands in a record. Raises BadSetting."""
    _check_known(name)
    if name == PAUSE:
        good = isinstance(value, bool)
    elif name == LOG_LEVEL:
        good = value in list(LEVELS)
    elif name == LOG_SAMPLE:
        good = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1
    else:
        try:
            value = getattr(_PLAIN.changed({name: value}), name)
            good = not isinstance(value, float) or math.isfinite(value)
        except TypeError:
            good = False
        except ValueError as error:
            raise BadSetting(str(error)) from None
    if not good:
        raise BadSetting(f"{name}={value}: it is {MEANINGS[name]}")
    checked: Value = value
    return checked


def effective(code: Tuning, values: Mapping[str, Value]) -> Effective:
    """The values of the code, with those that were set in their place."""
    tuned = {name: value for name, value in values.items() if name in TUNED}
    return Effective(code.changed(tuned), bool(values.get(PAUSE, False)))


def format_value(value: Any) -> str:
    """A value as it is typed."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return ",".join(map(format_value, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


_PLAIN = Tuning()


def _check_known(name: str) -> None:
    if name not in MEANINGS:
        raise BadSetting(f"there is no setting {name!r}. Use one of {', '.join(MEANINGS)}")
