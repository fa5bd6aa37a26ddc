"""Listening sockets that outlive the doors behind them.

A node of a group changes its role, and with it its doors. Its sockets stay open all the while: the kernel keeps the
clients that come in between, and no client is refused by a node that lives. Each door listens on a duplicate, and
closes that alone.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence

BACKLOG = 1024


async def bind(host: str, port: int) -> list[socket.socket]:
    """Listen on every address that the host has. Raises OSError where that cannot be."""
    loop = asyncio.get_running_loop()
    places = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    try:
        for family, _, _, _, address in dict.fromkeys(places):
            sockets.append(socket.create_server(address[:2], family=family, backlog=BACKLOG))
            sockets[-1].setblocking(False)
    except OSError:
        for each in sockets:
            each.close()
        raise
    return sockets


class Listeners:
    """The sockets of one node, by the names of their listeners."""

    def __init__(self) -> None:
        self._sockets: dict[str, list[socket.socket]] = {}
        # Where each listens, or did: port 0 is picked once.
        self._ports: dict[str, int] = {}

    async def bind(self, name: str, host: str, port: int) -> list[socket.socket]:
        """Duplicates of the sockets of a listener, which are opened if they are not. Raises OSError."""
        if name not in self._sockets:
            self._sockets[name] = await bind(host, self._ports.get(name, port))
            self._ports[name] = self._sockets[name][0].getsockname()[1]
        return [each.dup() for each in self._sockets[name]]

    def address(self, name: str) -> tuple[str, int]:
        """Where an open listener listens."""
        host, port = self._sockets[name][0].getsockname()[:2]
        return str(host), int(port)

    def free(self, name: str) -> int:
        """Close the sockets of a listener, for one that binds its port by itself; the port. The next `bind` opens them
        at the same port."""
        for each in self._sockets.pop(name, ()):
            each.close()
        return self._ports[name]

    def close(self) -> None:
        """Close all."""
        for name in list(self._sockets):
            self.free(name)


def close_all(sockets: Sequence[socket.socket]) -> None:
    for each in sockets:
        each.close()
