"""What can go wrong with an inbox."""

from __future__ import annotations

from headrace.errors import HeadraceError


class InboxError(HeadraceError):
    """The root of the inbox's errors."""


class InvalidId(InboxError):
    """An id, a name or an offset that cannot be stored."""


class UnsupportedDatabase(InboxError):
    """The database is none of those that an inbox knows."""
