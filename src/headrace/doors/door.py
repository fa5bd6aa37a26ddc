"""What a door is to the server, and what the server gives it.

A door is one wire protocol in front of the broker, at one or several addresses. It is made with a context and knows
nothing else of the server or of other doors; `headrace.doors.registry` lists the doors that there are. Its settings
are a class of its own (`headrace.settings`), in its own folder.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from headrace.addresses import parse_address
from headrace.broker.broker import Broker
from headrace.doors.capacity import Capacity
from headrace.doors.listeners import Listeners, close_all
from headrace.doors.settings import SharedSettings
from headrace.errors import DoorClosed
from headrace.settings import Settings

S = TypeVar("S", bound=Settings)


@runtime_checkable
class Door(Protocol):
    """One wire protocol in front of a broker."""

    @property
    def name(self) -> str:
        """As the registry has it."""

    @property
    def settings(self) -> Settings:
        """Its own."""

    @property
    def addresses(self) -> Mapping[str, str]:
        """HOST:PORT of each open listener, by the listener's name."""

    async def start(self) -> None:
        """Open every listener that is configured. Raises DoorClosed; `stop` is called even then."""

    async def stop(self) -> None:
        """Accept no more, answer what is under way, close. Safe to call on a door that did not start."""


@runtime_checkable
class Preloads(Protocol):
    """A door whose parts are imported when it starts, or when they are first needed."""

    @staticmethod
    def preload(settings: Any) -> None:
        """Import what clients are likely to need, given the door's settings: a node that follows has time for that, and
        one that begins to lead has not."""


@dataclass(frozen=True, slots=True)
class DoorContext(Generic[S]):
    """What a door has of the server and of the doors beside it."""

    broker: Broker
    settings: S
    """The door's own."""
    shared: SharedSettings = field(default_factory=SharedSettings)
    """Those of all doors."""
    capacity: Capacity = field(default_factory=Capacity)
    """Descriptors and memory, shared by all doors."""
    tls: ssl.SSLContext | None = None
    """None: no certificate is configured."""
    tls_without_client_certificates: ssl.SSLContext | None = None
    """The same for clients that show who they are by other means."""
    on_certificates: list[Callable[[], None]] = field(default_factory=list)
    """Called when the certificates were read again, for doors that do not use these contexts."""
    is_ready: Callable[[], bool] = lambda: True
    """Whether every door accepts."""
    addresses: Mapping[str, str] = field(default_factory=dict)
    """HOST:PORT of each listener of the doors that opened before."""
    host_names: Collection[str] = ("localhost",)
    """The names of this broker, by which HTTP clients may call it."""
    command_line: Sequence[str] = ()
    """A command that starts such a broker, without secrets."""
    listeners: Listeners | None = None
    """In a group, the sockets that stay open when the node's role changes; see `open_listener`."""


class Listen(Protocol):
    """Has a listener listen; on `sockets`, where there are any, and they are closed at the end."""

    async def __call__(self, host: str, port: int, *, sockets: Sequence[socket.socket] = ()) -> None: ...


async def open_listener(
    name: str, address: str, listen: Listen, listeners: Listeners | None = None, setting: str = ""
) -> bool:
    """Have a listener listen on its configured address; whether one is configured. `listeners` are the context's. The
    `setting` that has the address bears the listener's name, unless another is given. Raises DoorClosed."""
    place = parse_address(address)
    if place is None:
        return False
    sockets: list[socket.socket] = []
    try:
        if listeners is not None:
            sockets = await listeners.bind(name, *place)
        await listen(*place, sockets=sockets)
    except OSError as error:
        close_all(sockets)
        # An event loop puts the address into the text, once more; a name that is not known has no errno.
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or str(error)
        raise DoorClosed(
            f"the {name} door cannot listen on {address}: {reason}; free that address or give --{setting or name} "
            "another"
        ) from None
    return True
