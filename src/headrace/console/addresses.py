"""Addresses of brokers, as the console's settings have them."""

from __future__ import annotations

import re

from headrace.addresses import parse_address
from headrace.errors import ConfigError


def parse_brokers(text: str) -> dict[str, list[str]]:
    """The URLs of brokers by name, from NAME=URL,URL with spaces or semicolons between brokers. One without a name is
    `broker`; a place without a scheme is HOST:PORT of an HTTP door."""
    found: dict[str, list[str]] = {}
    for word in re.split(r"[;\s]+", text.strip()):
        name, equals, places = word.partition("=")
        if not equals:
            name, places = "broker", word
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", name):
            raise ConfigError(f"{name!r} is not a broker's name. Use letters, digits, '.', '_' and '-'.")
        if name in found:
            raise ConfigError(f"there are two brokers {name!r}. Name them apart, as in eu=HOST:PORT us=HOST:PORT")
        found[name] = [_url(place) for place in places.split(",") if place]
        if not found[name]:
            raise ConfigError(f"the broker {name!r} has no address. Give HOST:PORT of its HTTP door.")
    return found


def parse_smtp(text: str) -> tuple[str, int] | None:
    """Host and port of a mail server; None where there is none."""
    return parse_address(text) if text else None


def _url(place: str) -> str:
    scheme, mark, rest = place.partition("://")
    if not mark:
        scheme, rest = "http", place
    rest = rest.rstrip("/")
    if scheme not in ("http", "https") or "/" in rest or "@" in rest:
        raise ConfigError(f"{place!r} is not the address of an HTTP door. Give HOST:PORT, or https://HOST:PORT.")
    if ":" in rest and parse_address(rest) is None:
        raise ConfigError(f"{place!r} is not the address of an HTTP door. Give HOST:PORT, or https://HOST:PORT.")
    return f"{scheme}://{rest}"
