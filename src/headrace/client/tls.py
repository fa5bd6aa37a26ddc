"""TLS of clients: the context for a connection, from files in PEM."""

from __future__ import annotations

import ssl

from headrace.errors import ConfigError


def client_context(ca: str = "", cert: str = "", key: str = "") -> ssl.SSLContext:
    """A context that trusts these authorities (empty: the machine's) and presents this certificate. Raises
    ConfigError, which names the files, because Python's own error does not."""
    try:
        context = ssl.create_default_context(cafile=ca or None)
        if cert:
            context.load_cert_chain(cert, key or None)
    except OSError as error:
        files = ", ".join(file for file in (ca, cert, key) if file)
        raise ConfigError(f"{files} cannot be used for TLS: {error.strerror or error}") from None
    return context
