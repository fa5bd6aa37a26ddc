"""Questions to a broker's HTTP door, as the user of the job.

A node that follows answers with the address of the one that leads. That one alone is gone to, over TLS if the first was
asked over TLS: Python's own client shows the Authorization header wherever a redirect leads.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

from headrace.client.login_files import authorization_header
from headrace.client.tls import client_context
from headrace.errors import HeadraceError
from headrace.pipeline.connection_options import ConnectionOptions
from headrace.pipeline.login import read_credentials

SECONDS = 30.0
HTTPS = "https://"
REDIRECT = 307
REDIRECTS_MAX = 3


class HttpDoor:
    """The door at an address: HOST:PORT, with https:// before it for TLS."""

    def __init__(self, address: str, options: ConnectionOptions) -> None:
        """The `options` say as whom, and which authorities are trusted."""
        self._context = client_context(options.ca) if address.startswith(HTTPS) else None
        self._address = address.removeprefix(HTTPS).removeprefix("http://").rstrip("/")
        credentials = read_credentials(options)
        self._headers: Mapping[str, str] = (
            {} if credentials is None else {"Authorization": authorization_header(credentials)}
        )

    def get(self, path: str) -> Any:
        """The answer's JSON. Raises HeadraceError."""
        try:
            response, body = self._send(path)
            answer = json.loads(body)
        except (OSError, ValueError, HTTPException) as error:
            raise HeadraceError(
                f"no HTTP door answers at {self._address} ({error}). Give --http, or judge queues by --share "
                "QUEUE=SHARE and consumer groups by --groups."
            ) from None
        if response.status >= 300:
            raise HeadraceError(f"{self._address}{path}: {answer.get('message', answer)}")
        return answer

    def _send(self, path: str) -> tuple[HTTPResponse, bytes]:
        for _ in range(REDIRECTS_MAX):
            response, body = self._ask(path)
            leader = urlsplit(response.getheader("Location", "")).netloc
            if response.status != REDIRECT or not leader:
                break
            self._address = leader
        return response, body

    def _ask(self, path: str) -> tuple[HTTPResponse, bytes]:
        if self._context is None:
            made = HTTPConnection(self._address, timeout=SECONDS)
        else:
            made = HTTPSConnection(self._address, timeout=SECONDS, context=self._context)
        with closing(made) as connection:
            connection.request("GET", path, headers=dict(self._headers))
            response = connection.getresponse()
            return response, response.read()
