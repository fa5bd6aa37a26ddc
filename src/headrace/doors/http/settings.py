"""The settings of the HTTP door."""

from __future__ import annotations

from headrace.addresses import host_names
from headrace.settings import Settings, setting


class HttpSettings(Settings):
    """What the HTTP door is given."""

    http: str = setting(
        "127.0.0.1:9080", "HOST:PORT of the HTTP door (management, metrics, health), or `off`.", address=True
    )
    http_hosts: str = setting(
        "",
        "More names by which HTTP clients may call the broker's HTTP doors, several separated by commas; `*.NAME`: all "
        "below that name, `*`: any.",
        parse=host_names,
        metavar="NAME,NAME",
    )
