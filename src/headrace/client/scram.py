"""The client's side of SCRAM (RFC 5802, RFC 7677), without I/O: messages in, messages out.

The password never leaves this side. The server, too, has to show that it knows it: one that does not is not the one
that was meant, and nothing may be sent to it. All that a server says is bounded, the work that it may ask for as well.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode, b64encode

from headrace.client.credentials import Mechanism
from headrace.client.errors import AuthenticationError

ITERATIONS_MIN, ITERATIONS_MAX = 4_096, 1_000_000
"""Fewer make a weak proof, more are an attack on the client's time."""
HEADER = "n,,"
HASHES = {Mechanism.SCRAM_SHA_256: "sha256", Mechanism.SCRAM_SHA_512: "sha512"}


class ScramClient:
    """One exchange: `first`, then `prove` with the server's first message, then `check` with its last."""

    def __init__(self, mechanism: Mechanism, user: str, password: str, nonce: str) -> None:
        self._hash = HASHES[mechanism]
        self._password = password.encode()
        self._nonce = nonce
        self._bare = f"n={user.replace('=', '=3D').replace(',', '=2C')},r={nonce}"
        self._signature = b""

    def first(self) -> bytes:
        """The message that begins the exchange."""
        return (HEADER + self._bare).encode()

    def prove(self, server_first: bytes) -> bytes:
        """The proof. It takes milliseconds: to be called off the loop. Raises AuthenticationError."""
        text = _decode(server_first)
        fields = text.split(",")
        if len(fields) < 3 or [each[:2] for each in fields[:3]] != ["r=", "s=", "i="]:
            raise AuthenticationError("the broker's first SCRAM message is malformed")
        nonce, salt, iterations = (each[2:] for each in fields[:3])
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise AuthenticationError("the broker answers another SCRAM exchange: its nonce is not behind this one's")
        count = int(iterations) if iterations.isascii() and iterations.isdigit() and len(iterations) < 10 else -1
        if not ITERATIONS_MIN <= count <= ITERATIONS_MAX:
            raise AuthenticationError(
                f"SCRAM takes {ITERATIONS_MIN} to {ITERATIONS_MAX} iterations (the broker asks for {iterations[:20]!r})"
            )
        salted = hashlib.pbkdf2_hmac(self._hash, self._password, _decode_base64(salt), count)
        without_proof = f"c={b64encode(HEADER.encode()).decode()},r={nonce}"
        signed = f"{self._bare},{text},{without_proof}".encode()
        client_key = self._sign(salted, b"Client Key")
        mask = self._sign(hashlib.new(self._hash, client_key).digest(), signed)
        proof = bytes(one ^ other for one, other in zip(client_key, mask, strict=True))
        self._signature = self._sign(self._sign(salted, b"Server Key"), signed)
        return f"{without_proof},p={b64encode(proof).decode()}".encode()

    def check(self, server_final: bytes) -> None:
        """Raise AuthenticationError unless the server has shown that it knows the password."""
        text = _decode(server_final)
        if text.startswith("e="):
            raise AuthenticationError(f"the broker refuses the password: {text[2:]}")
        shown = _decode_base64(text[2:].split(",")[0]) if text.startswith("v=") else b""
        if not self._signature or not hmac.compare_digest(shown, self._signature):
            raise AuthenticationError(
                "the broker does not know the password that it has taken: its signature is wrong. It may not be the "
                "broker that you mean."
            )

    def _sign(self, key: bytes, message: bytes) -> bytes:
        return hmac.digest(key, message, self._hash)


def _decode(message: bytes) -> str:
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise AuthenticationError("the broker's SCRAM message is not UTF-8") from None


def _decode_base64(text: str) -> bytes:
    try:
        found = b64decode(text, validate=True)
    except ValueError:
        found = b""
    if not found:
        raise AuthenticationError("the broker's SCRAM message has a field that is not Base64")
    return found
