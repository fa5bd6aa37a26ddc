"""Doors that other machines reach although nothing guards them: refused at a start, unless that is accepted.

A broker without users and certificates is safe where only this machine reaches it. So a listener beyond the loopback
interface needs TLS or authentication, or the operator's word (`insecure`) that the network around it is guarded. Each
door says for itself which of its listeners are guarded (`DoorEntry.guarded`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from headrace.addresses import is_loopback, parse_address
from headrace.config import Config
from headrace.doors.registry import DoorEntry
from headrace.errors import ConfigError

log = structlog.get_logger("headrace.server")


@dataclass(frozen=True, slots=True)
class Exposed:
    """A listener that other machines reach, and that asks nobody who they are."""

    name: str
    address: str
    """HOST:PORT, as it is configured."""
    remedy: str
    """How to guard it, as an instruction."""


def exposed_doors(config: Config, entries: Sequence[DoorEntry]) -> list[Exposed]:
    """The listeners of doors that are open to other machines without a guard."""
    found = []
    for entry in entries:
        guarded = {name.replace("_", "-") for name in entry.guarded(config)}
        for name, address in entry.listeners(config).items():
            if name not in guarded and is_exposed(address):
                found.append(Exposed(name, address, entry.remedy))
    return found


def is_exposed(address: str) -> bool:
    """Whether a listener at HOST:PORT is reached from other machines."""
    place = parse_address(address)
    return place is not None and not is_loopback(place[0])


def refuse_exposed(exposed: Sequence[Exposed], *, insecure: bool) -> None:
    """Raise ConfigError for listeners that nothing guards; with `insecure`, log them."""
    if not exposed:
        return
    places = ", ".join(f"{each.name} on {each.address}" for each in exposed)
    if insecure:
        log.warning(f"insecure: other machines reach {places} with neither TLS nor authentication")
        return
    remedies = " ".join(dict.fromkeys(each.remedy for each in exposed if each.remedy))
    raise ConfigError(
        f"other machines would reach {places} with neither TLS nor authentication. Listen on 127.0.0.1, or guard them. "
        f"{remedies}{' ' if remedies else ''}To accept it, where the network is guarded, set insecure: --insecure, "
        "HEADRACE_INSECURE=true, or insecure = true in the file."
    )
