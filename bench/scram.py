"""How a load generator authenticates: SCRAM-SHA-256 over a blocking socket, before anything is measured."""

from __future__ import annotations

import secrets
import socket
from struct import Struct

from headrace.client.credentials import Mechanism
from headrace.client.scram import ScramClient

SASL_HANDSHAKE, SASL_AUTHENTICATE = 17, 36
VERSION = 1
_HEAD = Struct(">ihhih")
_INT16 = Struct(">h")
_INT32 = Struct(">i")


def login(sock: socket.socket, user: str, password: str) -> None:
    """Raises RuntimeError where the server refuses it."""
    mechanism = str(Mechanism.SCRAM_SHA_256).encode()
    _ask(sock, SASL_HANDSHAKE, _INT16.pack(len(mechanism)) + mechanism)
    exchange = ScramClient(Mechanism.SCRAM_SHA_256, user, password, secrets.token_urlsafe(18))
    exchange.check(_say(sock, exchange.prove(_say(sock, exchange.first()))))


def _say(sock: socket.socket, message: bytes) -> bytes:
    """One message of the mechanism, and the server's."""
    reply = _ask(sock, SASL_AUTHENTICATE, _INT32.pack(len(message)) + message)
    # Behind the error stands a sentence about it, which may be null.
    (words,) = _INT16.unpack_from(reply, 2)
    begin = 4 + max(words, 0) + 4
    (size,) = _INT32.unpack_from(reply, begin - 4)
    return reply[begin : begin + size]


def _ask(sock: socket.socket, key: int, body: bytes) -> bytes:
    sock.sendall(_HEAD.pack(_HEAD.size - 4 + len(body), key, VERSION, 1, -1) + body)
    (size,) = _INT32.unpack(_exactly(sock, 4))
    reply = _exactly(sock, size)[4:]
    (error,) = _INT16.unpack_from(reply)
    if error:
        raise RuntimeError(f"the server refused request {key} of a login with error {error}")
    return reply


def _exactly(sock: socket.socket, size: int) -> bytes:
    got = bytearray()
    while len(got) < size:
        more = sock.recv(size - len(got))
        if not more:
            raise ConnectionError("the server closed the connection")
        got += more
    return bytes(got)
