"""One connection to one member of etcd: requests and answers of its JSON gateway, over HTTP/1.1 that is kept alive.

It knows nothing of keys and leases. What it adds to HTTP are bounds, the sentence for each way in which a server is not
the etcd that is wanted, and the line between a request that was never sent and one that may have been carried out.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import ssl
from collections.abc import AsyncIterator, Mapping
from http import HTTPStatus
from typing import Any

import h11

from headrace.addresses import format_address
from headrace.cluster.errors import EtcdError, EtcdRejected, EtcdUnavailable, OutcomeUnknown

READ_BYTES = 65_536
# etcd takes no request above 1.5 MiB; an answer holds a few records of a few hundred bytes.
ANSWER_MAX_BYTES = 4 * 1024 * 1024

# Older ones have no /v3, or leases that expire although they are kept alive.
OLDEST = (3, 4, 14)
RECOMMENDED = "3.5 or newer is recommended"

# gRPC's codes for an answer that is final: the request was not carried out, and will not be.
NOT_FOUND, PERMISSION_DENIED, UNAUTHENTICATED = 5, 7, 16
FINAL = frozenset({3, NOT_FOUND, PERMISSION_DENIED, 8, 9, 11, 12, UNAUTHENTICATED})
# Users and roles have changed since the token was issued; there is no token, and users are asked for by now.
OUTDATED = "revision of auth store is old"
NAMELESS = "user name is empty"

# What etcd's own words mean to an operator.
REFUSALS = {
    NAMELESS: "it asks for a user and a password. Use --etcd-user and --etcd-password-file",
    "authentication failed": "the user or the password is wrong. See --etcd-user and --etcd-password-file",
    "permission denied": "the user has no right to read and write keys under /headrace/. Grant it a role",
    "database space exceeded": "its database is full. Compact and defragment etcd, then disarm its NOSPACE alarm",
}

PLAIN_TO_TLS = b"HTTP request to an HTTPS server"
# By the names that OpenSSL gives them; others are reported in OpenSSL's words.
TLS_REASONS = {
    "WRONG_VERSION_NUMBER": "it does not speak TLS. Use etcd:// for plain text",
    "RECORD_LAYER_FAILURE": "it does not speak TLS. Use etcd:// for plain text",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "it asks for a client certificate",
    "SSLV3_ALERT_BAD_CERTIFICATE": "it does not accept the client's certificate",
    "TLSV1_ALERT_UNKNOWN_CA": "it does not trust the authority of the client's certificate",
}


class Rejected(EtcdRejected):
    """An answer that is final, with gRPC's code and etcd's own words."""

    def __init__(self, sentence: str, grpc_code: int, message: str) -> None:
        super().__init__(sentence)
        self.grpc_code = grpc_code
        self.message = message

    @property
    def is_token_invalid(self) -> bool:
        """Whether the same request may pass with a new token."""
        return self.grpc_code == UNAUTHENTICATED or any(known in self.message for known in (OUTDATED, NAMELESS))


class Gateway:
    """A connection to one member, for one request at a time."""

    def __init__(self, address: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.address = address
        self.version = ""
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.CLIENT)
        self._is_closed = False

    @property
    def is_usable(self) -> bool:
        """Whether another request can be sent, as far as is known here."""
        idle = self._http.our_state is h11.IDLE and self._http.their_state is h11.IDLE
        return idle and not self._reader.at_eof() and not self._writer.is_closing()

    async def identify(self, token: str) -> dict[str, Any]:
        """Learn the member's version; its answer has the id of its etcd cluster, if the user may know. Raises
        EtcdRejected for one that cannot be used, EtcdUnavailable for one that does not answer."""
        try:
            try:
                answer = await self.call("/v3/maintenance/status", {}, token)
                self.version = str(answer.get("version", ""))
            except Rejected as error:
                if error.grpc_code != PERMISSION_DENIED:
                    raise
                # From 3.6 on the status is for root alone. The version is for all; the cluster's id is not in it.
                answer = await self.call("/version")
                self.version = str(answer.get("etcdserver", ""))
        except OutcomeUnknown as error:
            # A question that changes nothing. To one that does not speak TLS, etcd closes the connection at once.
            is_plain = self._is_closed and self._writer.get_extra_info("ssl_object") is None
            raise EtcdUnavailable(f"{error}{'. Does it speak TLS? Use etcds://.' if is_plain else ''}") from None
        numbers = re.match(r"(\d+)\.(\d+)\.(\d+)", self.version)
        if numbers is None:
            raise EtcdRejected(f"{self.address} does not answer as etcd does. Is that etcd's client port?")
        if tuple(map(int, numbers.groups())) < OLDEST:
            oldest = ".".join(map(str, OLDEST))
            raise EtcdRejected(
                f"{self.address} is etcd {self.version}, which is too old: leases expire there although they are kept "
                f"alive. Use {oldest} at least; {RECOMMENDED}."
            )
        return answer

    async def call(self, path: str, body: Mapping[str, Any] | None = None, token: str = "") -> dict[str, Any]:
        """The answer to a request. Raises Rejected for an answer that is final, and OutcomeUnknown where the request
        may have been carried out, or may still be."""
        answers = [answer async for answer in self.stream(path, body, token)]
        if not answers:
            raise OutcomeUnknown(f"{self.address} gave an empty answer")
        return answers[0]

    async def stream(self, path: str, body: Mapping[str, Any] | None, token: str) -> AsyncIterator[dict[str, Any]]:
        """The JSON values of an answer, as they come: one for most requests, one for each event of a watch. A request
        without a body is a GET."""
        failure = None
        try:
            self._send(path, b"" if body is None else json.dumps(body).encode(), token)
            async for value in self._values():
                if isinstance(value, EtcdError):
                    # The rest of the answer is read, so that the connection can be used again.
                    failure = value
                else:
                    yield value
            if self._http.our_state is self._http.their_state is h11.DONE:
                self._http.start_next_cycle()
        except h11.ProtocolError as error:
            if self._is_closed:
                raise OutcomeUnknown(f"{self.address} closed the connection before it had answered") from None
            raise OutcomeUnknown(
                f"{self.address} does not answer in HTTP ({error}). Is that etcd's client port?"
            ) from None
        except ssl.SSLError as error:
            raise OutcomeUnknown(f"TLS with {self.address} failed: {_tls_reason(error)}") from None
        except OSError as error:
            raise OutcomeUnknown(f"the connection to {self.address} broke: {_reason(error)}") from None
        if failure is not None:
            raise failure

    def _send(self, path: str, body: bytes, token: str) -> None:
        headers = [
            ("Host", self.address),
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(body))),
            *((("Authorization", token),) if token else ()),
        ]
        method = "POST" if body else "GET"
        events = (h11.Request(method=method, target=path, headers=headers), h11.Data(data=body), h11.EndOfMessage())
        self._writer.write(b"".join(self._http.send(event) or b"" for event in events))

    async def _values(self) -> AsyncIterator[dict[str, Any] | EtcdError]:
        """Values are separated by line ends."""
        status = 0
        rest = b""
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                data = await self._reader.read(READ_BYTES)
                self._is_closed = not data
                self._http.receive_data(data)
            elif isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                *lines, rest = (rest + event.data).split(b"\n")
                if len(rest) > ANSWER_MAX_BYTES or any(len(line) > ANSWER_MAX_BYTES for line in lines):
                    raise OutcomeUnknown(f"{self.address} gave an answer of more than {ANSWER_MAX_BYTES} bytes")
                for line in lines:
                    if line.strip():
                        yield self._decode(status, line)
            elif isinstance(event, h11.EndOfMessage):
                if rest.strip():
                    yield self._decode(status, rest)
                elif status != HTTPStatus.OK:
                    yield self._decode(status, b"")
                return
            elif not isinstance(event, h11.InformationalResponse):
                raise OutcomeUnknown(f"{self.address} closed the connection before it had answered")

    def _decode(self, status: int, line: bytes) -> dict[str, Any] | EtcdError:
        """What a line of an answer holds, or the error that it stands for."""
        try:
            value = json.loads(line)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            return self._foreign(status, line)
        # Values of streams are wrapped, and so are the errors of streams.
        failure = value.get("error")
        if status == HTTPStatus.OK and failure is None:
            result = value.get("result", value)
            return result if isinstance(result, dict) else self._foreign(status, line)
        if isinstance(failure, dict):
            value = failure
        message = str(value.get("message") or failure or f"status {status}")
        code = value.get("code", value.get("grpc_code"))
        if code not in FINAL:
            return OutcomeUnknown(f"{self.address} could not answer: {message}")
        words = next((words for known, words in REFUSALS.items() if known in message), message)
        return Rejected(f"etcd at {self.address} refuses: {words}", code, message)

    def _foreign(self, status: int, line: bytes) -> EtcdError:
        """The error for an answer that is not etcd's."""
        if PLAIN_TO_TLS in line:
            return EtcdRejected(f"{self.address} speaks TLS. Use etcds:// instead of etcd://.")
        if status in (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED):
            return EtcdRejected(
                f"{self.address} is not an etcd with the v3 API (it answers {status}). Is that etcd's client port? "
                f"Versions before 3.4 are not supported; {RECOMMENDED}."
            )
        return OutcomeUnknown(f"{self.address} gave an answer that cannot be read (status {status})")

    def close(self) -> None:
        """Close at once."""
        self._writer.transport.abort()


async def connect(host: str, port: int, tls: ssl.SSLContext | None) -> Gateway:
    """Connect to a member. Raises EtcdUnavailable."""
    address = format_address(host, port)
    try:
        reader, writer = await asyncio.open_connection(
            host, port, ssl=tls, server_hostname=host if tls is not None else None
        )
    except UnicodeError:
        raise EtcdUnavailable(f"cannot reach {address}: {host!r} is not a host name") from None
    except ssl.SSLError as error:
        raise EtcdUnavailable(f"TLS with {address} failed: {_tls_reason(error)}") from None
    except OSError as error:
        raise EtcdUnavailable(f"cannot reach {address}: {_reason(error)}") from None
    return Gateway(address, reader, writer)


def _reason(error: OSError) -> str:
    # asyncio puts the address into the text once more; a name that is not known has no errno of this kind.
    plain = type(error) is OSError or isinstance(error, ConnectionError)
    reason = os.strerror(error.errno) if plain and error.errno else error.strerror or str(error)
    return reason or "it hung up during the TLS handshake. Use etcd:// if it does not speak TLS"


def _tls_reason(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    reason = error.reason or str(error)
    return TLS_REASONS.get(reason, reason.lower().replace("_", " "))
