"""The settings of the HTTP door."""

from __future__ import annotations

from typing import Any

from headrace.addresses import host_names
from headrace.settings import Settings, setting


class HttpSettings(Settings):
    """What the HTTP door is given."""

    TITLE = "HTTP"

    http: str = setting(
        "127.0.0.1:9080", "HOST:PORT of the HTTP door (management, metrics, health), or `off`.", address=True
    )
    http_tls: bool = setting(
        False, "The HTTP door speaks TLS only, with `tls_cert` and, if it is set, `tls_client_ca`."
    )
    http_hosts: str = setting(
        "",
        "More names by which HTTP clients may call the broker's HTTP doors, several separated by commas; `*.NAME`: all "
        "below that name, `*`: any.",
        parse=host_names,
        metavar="NAME,NAME",
    )


REMEDY = "Give tls_cert, tls_key and http_tls to have HTTP clients speak TLS."


def guarded(config: Any) -> tuple[str, ...]:
    """Of the addresses in a server's settings, those that may be reached from other machines."""
    return ("http",) if config.http_tls and config.tls_cert else ()
