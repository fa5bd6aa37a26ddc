"""`etcd://HOST:PORT,.../NAME`: where the cluster's metadata lies. The one place where it is understood."""

from __future__ import annotations

import re
from dataclasses import dataclass

from headrace.addresses import parse_addresses
from headrace.errors import ConfigError

FORM = "etcd://HOST:PORT,HOST:PORT/NAME (etcds:// with TLS)"
SCHEMES = {"etcd": False, "etcds": True}
# Of clusters and of groups: parts of keys, of metrics and of file names.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class ClusterUrl:
    """The members of etcd, and the cluster's name there."""

    members: tuple[tuple[str, int], ...]
    name: str
    is_tls: bool


def parse_cluster_url(text: str) -> ClusterUrl:
    """Raises ConfigError."""
    scheme, _, rest = text.partition("://")
    hosts, slash, name = rest.partition("/")
    if scheme not in SCHEMES or not slash:
        raise ConfigError(f"{text!r} is not {FORM}")
    check_name(name, "cluster")
    members = tuple(parse_addresses(hosts))
    if not members:
        raise ConfigError(f"{text!r} names no member of etcd. Use {FORM}.")
    if any(not part.strip() or part.strip().startswith(":") for part in hosts.split(",")):
        raise ConfigError(f"{text!r} has a member without a host. Use {FORM}.")
    if len(set(members)) < len(members):
        raise ConfigError(f"{text!r} names a member of etcd twice")
    return ClusterUrl(members, name, SCHEMES[scheme])


def check_name(name: str, what: str) -> None:
    """Raises ConfigError for a text that cannot be the name of a cluster or a group."""
    if NAME.fullmatch(name) is None:
        raise ConfigError(
            f"{name!r} cannot be the name of a {what}: use 1 to 64 letters, digits, dots, hyphens and underscores, "
            "the first a letter or digit"
        )
