"""The address and ports by which NSQ's clients and look-up services reach this broker.

One object, which the doors share and the server completes as they open, because a port may be the kernel's choice.
"""

from __future__ import annotations

from dataclasses import dataclass

# The version of NSQ whose protocols are spoken. Tools such as nsqadmin choose endpoints by it, so it is NSQ's own
# number and not Headrace's.
NSQ_VERSION = "1.3.0"
EVERY_INTERFACE = ("0.0.0.0", "::")


@dataclass(slots=True)
class Presence:
    """How this broker is reached. A port of 0: that door is closed."""

    hostname: str
    start_ms: int
    """When it started."""
    broadcast_address: str = ""
    tcp_port: int = 0
    http_port: int = 0


def broadcast_address(configured: str, host: str, hostname: str) -> str:
    """The address to advertise for a door that listens on `host`: the one that is configured, or that host, or the
    machine's name where it listens everywhere."""
    if configured:
        return configured
    return hostname if host in EVERY_INTERFACE else host
