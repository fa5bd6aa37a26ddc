"""Requests that a web page made a browser send, refused before anything looks at the path.

A browser that reaches a door is a way in for every page that it shows. Two things that a page cannot choose give it
away. *Origin* and *Sec-Fetch-Site* name the page's site: a request for a page of another site is refused. And *Host* is
the name under which the browser found the door: a page that moves its own name to the door's address (DNS rebinding)
is of the same site, but calls the door by a name that is not the broker's. Such an attack needs a name, so an address
in Host always passes, as do requests without these headers, which no browser sends.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Iterable

import structlog

from headrace.broker.rate_limit import RateLimit
from headrace.doors.http.server.messages import HttpError, Request

log = structlog.get_logger("headrace.web")

# Names that the public DNS cannot have: a door in a private network is called by them.
PRIVATE = (".internal", ".local")
# Hosts that were found good and are not looked at again.
REMEMBERED = 100


class Guard:
    """What one listener refuses."""

    def __init__(self, door: str, names: Iterable[str]) -> None:
        self._door = door
        self._exact = frozenset(name.lower().rstrip(".") for name in names)
        self._suffixes = tuple(name[1:] for name in self._exact if name.startswith("*."))
        self.loopback = True
        """The door is reached from this machine alone, where no other machine's names are used."""
        self._accepted: dict[str, None] = {}
        self._log_limit = RateLimit()

    def check(self, request: Request) -> None:
        """Raise HttpError for a request of another site, or to another host."""
        headers = request.headers
        host = headers.get("host", "")
        if host not in self._accepted:
            if not self._is_own(_name_of(host)):
                raise self._refused(
                    421,
                    f"the Host {host!r} is not a name of this broker. Call it by its address, or add the name to "
                    "http_hosts (--http-hosts)",
                )
            if len(self._accepted) >= REMEMBERED:
                self._accepted.clear()
            self._accepted[host] = None
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2].lower() != host.lower():
            raise self._refused(403, f"a page of {origin} must not use this door: it is of another site than {host}")
        if headers.get("sec-fetch-site", "none") in ("none", "same-origin"):
            return
        # Who follows a link to the door sees what it shows, and the page with the link does not.
        followed = request.method in ("GET", "HEAD") and headers.get("sec-fetch-dest") == "document"
        if not followed:
            raise self._refused(403, "a page of another site must not use this door")

    def _is_own(self, name: str) -> bool:
        if not name or name in self._exact or "*" in self._exact or name.endswith(self._suffixes):
            return True
        try:
            ipaddress.ip_address(name)
            return True
        except ValueError:
            return not self.loopback and ("." not in name or name.endswith(PRIVATE))

    def _refused(self, status: int, reason: str) -> HttpError:
        if count := self._log_limit.count(asyncio.get_running_loop().time()):
            log.warning("a browser's request was refused", door=self._door, reason=reason, count=count)
        return HttpError(status, "", reason)


def _name_of(host: str) -> str:
    """The name or address in a Host header, without its port."""
    name = host.lower()
    if name.startswith("["):
        return name[1:].partition("]")[0]
    return name.partition(":")[0].rstrip(".")
