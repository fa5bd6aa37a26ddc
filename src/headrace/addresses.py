"""Addresses and names of hosts, as settings and command lines have them."""

from __future__ import annotations

import ipaddress
import re

from headrace.errors import ConfigError


def parse_address(text: str) -> tuple[str, int] | None:
    """Host and port of HOST:PORT (an IPv6 host in brackets; an empty host: every interface), or None for `off`."""
    if text == "off":
        return None
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or len(port) > 5 or int(port) > 65_535:
        raise ConfigError(f"{text!r} is not HOST:PORT with a port of 0 to 65535, nor `off`")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ConfigError(f"{text!r}: put an IPv6 address in brackets, as in [::1]:9092")
    return host or "0.0.0.0", int(port)


def parse_addresses(text: str) -> list[tuple[str, int]]:
    """Hosts and ports of a list of HOST:PORT with commas between; the empty text is the empty list."""
    addresses = []
    for each in filter(None, (part.strip() for part in text.split(","))):
        address = parse_address(each)
        if address is None or not address[1]:
            raise ConfigError(f"{each!r} is not HOST:PORT with a port of 1 to 65535")
        addresses.append(address)
    return addresses


def format_address(host: str, port: int) -> str:
    """HOST:PORT, an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether a listener at this host is reached from this machine alone. Of names only localhost is: where another one
    leads is up to others."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host.rstrip(".").lower() == "localhost"
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def host_names(text: str) -> list[str]:
    """The names of a list with commas between; each may begin with `*.`, or be `*`."""
    names = [part.strip() for part in text.split(",") if part.strip()]
    for name in names:
        if not re.fullmatch(r"\*|(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?", name):
            raise ConfigError(f"{name!r} is not a host name. Give it without scheme and port, as in mq.example.com")
    return names
