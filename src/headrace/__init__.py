"""Headrace: one durable log with several front doors.

`headrace.Broker` is a broker inside this process; see `headrace.embedded`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.version import VERSION

if TYPE_CHECKING:
    from headrace.embedded import Broker
    from headrace.errors import HeadraceError

__version__ = VERSION
__all__ = ["Broker", "HeadraceError", "__version__"]


def __getattr__(name: str) -> object:
    # Lazily, because every part of the package imports this module and few need a whole broker.
    if name == "Broker":
        from headrace.embedded import Broker

        return Broker
    if name == "HeadraceError":
        from headrace.errors import HeadraceError

        return HeadraceError
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
