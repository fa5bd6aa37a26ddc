"""The doors that there are, in the order in which they open.

An entry names its door's class and does not import it: a door that is off costs neither time nor memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from importlib import import_module
from typing import Any

from headrace.doors.door import Door, DoorContext
from headrace.doors.http import settings as http
from headrace.doors.kafka import settings as kafka
from headrace.doors.nsq import settings as nsq
from headrace.doors.rocketmq import settings as rocketmq
from headrace.settings import Settings


@dataclass(frozen=True, slots=True)
class DoorEntry:
    """A door that the server can open."""

    name: str
    path: str
    """MODULE:CLASS of what makes the door, given a `DoorContext` with its settings."""
    settings: type[Settings]
    more: Callable[[Any], Mapping[str, str]] = lambda _: {}
    """The addresses of listeners that have no setting of their own, by their names, given the server's settings. They
    stand together in the setting NAME_listeners."""
    closed: Callable[[Any], Collection[str]] = lambda _: ()
    """Of its settings with addresses, given those of the server, those that open no listener."""
    guarded: Callable[[Any], Collection[str]] = lambda _: ()
    """Likewise, of those and of `more` the ones whose clients must speak TLS or show who they are. The others open to
    this machine alone, unless `insecure` is set."""
    remedy: str = ""
    """How an operator has the others guarded, for the error."""
    follower: str = ""
    """The same for a node that follows in a group; empty: the clients that come wait for the node to lead."""

    def listeners(self, config: Settings) -> dict[str, str]:
        """The configured address of each of its listeners that is open, by the listener's name."""
        names = [each.name for each in fields(self.settings) if each.metadata["address"]]
        closed = self.closed(config)
        found = {name.replace("_", "-"): getattr(config, name) for name in names if name not in closed}
        return {name: address for name, address in found.items() if address != "off"} | dict(self.more(config))

    def setting_of(self, listener: str) -> str:
        """The flag that has the address of a listener, without its dashes."""
        own = {each.name.replace("_", "-") for each in fields(self.settings)}
        return listener if listener in own else f"{self.name}-listeners"

    def is_configured(self, config: Settings) -> bool:
        """Whether any of its listeners is."""
        addresses = (each.name for each in fields(self.settings) if each.metadata["address"])
        return any(getattr(config, address) != "off" for address in addresses) or bool(self.more(config))

    def load(self, follows: bool = False) -> Callable[[DoorContext[Any]], Door]:
        """Import the door, or that of a node that follows."""
        module, _, name = (self.follower if follows else self.path).partition(":")
        door: Callable[[DoorContext[Any]], Door] = getattr(import_module(module), name)
        return door


FORWARDING = "headrace.doors.forwarding:ForwardingDoor"
# NSQ clients get the address of the HTTP door, so that opens before.
DOORS = (
    DoorEntry(
        "http",
        "headrace.doors.http.door:HttpDoor",
        http.HttpSettings,
        guarded=http.guarded,
        remedy=http.REMEDY,
        follower="headrace.doors.http.follower:HttpFollowerDoor",
    ),
    DoorEntry(
        "kafka",
        "headrace.doors.kafka.door:KafkaDoor",
        kafka.KafkaSettings,
        more=kafka.more,
        guarded=kafka.guarded,
        remedy=kafka.REMEDY,
        follower="headrace.doors.kafka.follower:KafkaFollowerDoor",
    ),
    DoorEntry(
        "nsq",
        "headrace.doors.nsq.door:NsqDoor",
        nsq.NsqSettings,
        closed=nsq.closed,
        guarded=nsq.guarded,
        remedy=nsq.REMEDY,
        follower=FORWARDING,
    ),
    DoorEntry(
        "rocketmq",
        "headrace.doors.rocketmq.door:RocketMqDoor",
        rocketmq.RocketMqSettings,
        closed=rocketmq.closed,
        guarded=rocketmq.guarded,
        remedy=rocketmq.REMEDY,
        follower=FORWARDING,
    ),
)
