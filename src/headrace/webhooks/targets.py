"""Where requests may go: a name must not lead into the private network around the process.

Whoever owns a name decides where it leads, and may change that at any time. So addresses are judged after each lookup,
and the connection goes to one that was judged: there is no second lookup between. An address that stands in the URL
itself, or `localhost`, was chosen by the operator, and is taken. Redirects are not followed at all (`endpoint.py`).
"""

from __future__ import annotations

import errno
import ipaddress
import socket

from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import DefaultResolver

CHOSEN = ("localhost",)
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


def is_public(address: str) -> bool:
    """Whether an address is one of the internet, also where another one stands inside of it."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(found, ipaddress.IPv6Address):
        inner = found.ipv4_mapped or found.sixtofour or (found.teredo[1] if found.teredo else None)
        if found in _NAT64:
            inner = ipaddress.IPv4Address(int(found) & 0xFFFF_FFFF)
        if inner is not None:
            return is_public(str(inner))
    return found.is_global and not found.is_multicast


class PublicResolver(AbstractResolver):
    """Looks names up, and gives those of their addresses that are public."""

    def __init__(self, resolver: AbstractResolver | None = None) -> None:
        self._resolver = resolver or DefaultResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """The addresses of a name. Raises OSError where none of them may be connected to."""
        found = await self._resolver.resolve(host, port, family)
        if host.rstrip(".").lower() in CHOSEN:
            return found
        public = [each for each in found if is_public(each["host"])]
        if not public:
            raise OSError(
                errno.EACCES,
                f"{host} leads to a private address ({', '.join(sorted({each['host'] for each in found}))}). Set "
                "allow_private where it is meant to",
            )
        return public

    async def close(self) -> None:
        await self._resolver.close()
