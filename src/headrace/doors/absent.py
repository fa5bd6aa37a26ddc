"""Settings of doors that this version does not have: `off` is the one value that fits.

A program that starts a broker closes the doors that it does not need, one by one, and its command line is to work with
every version.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.addresses import parse_address
from headrace.errors import ConfigError
from headrace.settings import HOST_PORT, Settings, setting


def _only_off(what: str) -> Callable[[str], None]:
    def parse(text: str) -> None:
        if parse_address(text) is not None:
            raise ConfigError(f"{text!r} cannot be opened: this version has no {what}. Leave it out, or give `off`")

    return parse


class AbsentSettings(Settings):
    """What is accepted and opens nothing."""

    TITLE = "Doors that this version does not have"

    amqp: str = setting("off", "`off`: this version has no AMQP door.", parse=_only_off("AMQP door"), metavar=HOST_PORT)
