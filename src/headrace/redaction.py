"""What may be shown of a text that can hold a secret, in logs, in errors and to clients."""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit

HIDDEN = "***"


def redact_url(url: str) -> str:
    """A URL, or HOST:PORT, without what may be secret in it: user, password, and the query."""
    if "://" not in url:
        return url.rpartition("@")[2].partition("?")[0]
    try:
        parts = urlsplit(url)
    except ValueError:
        return HIDDEN
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "...." if parts.query else "", ""))
