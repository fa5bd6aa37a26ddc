"""The server's side of SCRAM (RFC 5802, RFC 7677), without I/O: messages in, messages out.

A client names its user and a nonce; the server answers with its own nonce behind that one, the salt and the iterations;
the client proves that it knows the salted password for exactly these messages; the server proves that it knows it, too.
For an unknown user the exchange goes on to the end with a salt that is made up, always the same one for the same name,
and fails where a wrong password does.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Callable, Sequence

from headrace.broker.security.credentials import Credential, Mechanism
from headrace.broker.security.identity import Identity
from headrace.errors import AuthenticationFailed

MESSAGE_BYTES_MAX = 4_096
NONCE_BYTES = 24

_GS2 = re.compile(r"([ny]|p=[A-Za-z0-9.-]+),(?:a=([^,]*))?,")
# Printable, without a comma.
_NONCE = re.compile(r"[\x21-\x2b\x2d-\x7e]+")
_NAME = re.compile(r"(?:[^,=\0]|=2C|=3D)+")
_EXTENSION = re.compile(r"[A-Za-z]=[^,\0]*|[A-Za-z]{2,}=[^,\0]*")

Find = Callable[[str], Sequence[Credential]]
"""From a user's name to the credentials that one exchange can verify. There is always one, which no proof fits where
the user is unknown."""
Finish = Callable[[str, Credential | None], Identity]
"""Called with the user and the credential that was proven, if one was: its identity. Raises AuthenticationFailed."""
Fail = Callable[[str, str], AuthenticationFailed]
"""Called with the user (as far as it is known) and what is wrong: the error to raise."""


class ScramExchange:
    """One exchange with one client."""

    def __init__(self, mechanism: Mechanism, find: Find, finish: Finish, fail: Fail, nonce: str) -> None:
        self.mechanism = mechanism
        self.identity: Identity | None = None
        """As whom the client is authenticated, once that is done."""
        self.user = ""
        """As whom it wants to be."""
        self._find = find
        self._finish = finish
        self._fail = fail
        self._nonce = nonce
        self._step = self._first
        self._header = ""
        self._bare = ""
        self._server_first = ""
        self._credentials: Sequence[Credential] = ()

    @property
    def is_done(self) -> bool:
        """Whether the client is authenticated."""
        return self.identity is not None

    def step(self, message: bytes) -> bytes:
        """The answer to the client's next message. Raises AuthenticationFailed; the exchange is over then."""
        step, self._step = self._step, self._over
        if len(message) > MESSAGE_BYTES_MAX:
            raise self._error(f"a SCRAM message has at most {MESSAGE_BYTES_MAX} bytes (got {len(message)})")
        try:
            text = message.decode()
        except UnicodeDecodeError:
            raise self._error("a SCRAM message must be UTF-8") from None
        return step(text).encode()

    def _error(self, what: str) -> AuthenticationFailed:
        return self._fail(self.user, what)

    def _over(self, text: str) -> str:
        raise self._error("the SCRAM exchange is over. Begin another one.")

    def _check_extensions(self, extensions: Sequence[str]) -> None:
        if not all(map(_EXTENSION.fullmatch, extensions)):
            raise self._error("the client's SCRAM message has an invalid extension")

    def _first(self, text: str) -> str:
        header = _GS2.match(text)
        if header is None:
            raise self._error("the client's first SCRAM message has no valid header")
        binding, authorization = header[1], header[2]
        if binding.startswith("p="):
            raise self._error("channel binding is not offered. Use SCRAM without it.")
        self._header, self._bare = header[0], text[header.end() :]
        name, _, rest = self._bare.partition(",")
        nonce, *extensions = rest.split(",")
        if name.startswith("m="):
            raise self._error("the client's SCRAM message has a mandatory extension, which is not supported")
        if not name.startswith("n=") or not _NAME.fullmatch(name[2:]):
            raise self._error("the client's first SCRAM message has no valid user name")
        if not nonce.startswith("r=") or not _NONCE.fullmatch(nonce[2:]):
            raise self._error("the client's first SCRAM message has no valid nonce")
        self._check_extensions(extensions)
        if "tokenauth=true" in extensions:
            raise self._error("delegation tokens are not offered. Use a password or an API token.")
        if authorization and authorization != name[2:]:
            raise self._error("a user cannot act as another one. Leave out the authorization identity.")
        self.user = name[2:].replace("=2C", ",").replace("=3D", "=")
        self._credentials = self._find(self.user)
        one = self._credentials[0]
        self._nonce = nonce[2:] + self._nonce
        self._server_first = f"r={self._nonce},s={b64encode(one.salt).decode()},i={one.iterations}"
        self._step = self._final
        return self._server_first

    def _final(self, text: str) -> str:
        without_proof, _, proof_text = text.rpartition(",p=")
        binding, _, rest = without_proof.partition(",")
        nonce, *extensions = rest.split(",")
        self._check_extensions(extensions)
        if binding != f"c={b64encode(self._header.encode()).decode()}":
            raise self._error("the client's last SCRAM message is bound to another exchange")
        if nonce != f"r={self._nonce}":
            raise self._error("the client's last SCRAM message has the nonce of another exchange")
        try:
            proof = b64decode(proof_text, validate=True)
        except (NotBase64, ValueError):
            proof = b""
        if len(proof) != self.mechanism.size:
            raise self._error("the client's last SCRAM message has no valid proof")
        signed = f"{self._bare},{self._server_first},{without_proof}".encode()
        proven: Credential | None = None
        for credential in self._credentials:
            if _is_proven(credential, signed, proof):
                proven = credential
        identity = self._finish(self.user, proven)
        assert proven is not None
        self.identity = identity
        return f"v={b64encode(hmac.digest(proven.server_key, signed, self.mechanism.hash)).decode()}"


def _is_proven(credential: Credential, signed: bytes, proof: bytes) -> bool:
    """Whether a proof shows the password behind a credential."""
    hash_name = credential.mechanism.hash
    signature = hmac.digest(credential.stored_key, signed, hash_name)
    client_key = bytes(one ^ other for one, other in zip(proof, signature, strict=True))
    return hmac.compare_digest(hashlib.new(hash_name, client_key).digest(), credential.stored_key)
