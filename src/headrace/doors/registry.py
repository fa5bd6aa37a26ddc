"""The doors that there are, in the order in which they open.

An entry names its door's class and does not import it: a door that is off costs neither time nor memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

from headrace.config import Config
from headrace.doors.door import Door, DoorContext


@dataclass(frozen=True, slots=True)
class DoorEntry:
    """A door that the server can open."""

    name: str
    path: str
    """MODULE:CLASS of what makes the door, given a `DoorContext`."""
    settings: tuple[str, ...]
    """The settings with the addresses of its listeners."""

    def is_configured(self, config: Config) -> bool:
        """Whether any of its listeners is."""
        return any(getattr(config, setting) != "off" for setting in self.settings)

    def load(self) -> Callable[[DoorContext], Door]:
        """Import the door."""
        module, _, name = self.path.partition(":")
        door: Callable[[DoorContext], Door] = getattr(import_module(module), name)
        return door


# NSQ tells its clients where the HTTP door is, so that opens before.
DOORS = (
    DoorEntry("http", "headrace.doors.http.door:HttpDoor", ("http",)),
    DoorEntry("kafka", "headrace.doors.kafka.door:KafkaDoor", ("kafka",)),
    DoorEntry("nsq", "headrace.doors.nsq.door:NsqDoor", ("nsq", "nsq_http", "nsq_https", "lookup", "lookup_http")),
)
