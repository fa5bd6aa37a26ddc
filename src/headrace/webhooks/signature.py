"""Signatures by the Standard Webhooks scheme: HMAC-SHA256 over id, time and body, one for each secret.

The time is signed too, so that an old request cannot be replayed; several secrets let one be replaced while senders and
receivers change one after the other.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import time
from collections.abc import Mapping, Sequence

PREFIX = "whsec_"
VERSION = "v1"
ID, TIMESTAMP, SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"
TOLERANCE_SECONDS = 300.0
# Less can be guessed.
SECRET_BYTES_MIN = 16
SECRET_BYTES_NEW = 32


class InvalidSignature(Exception):
    """A request was not signed with the secret, or was sent too long ago."""


def new_secret() -> str:
    """A secret, as the scheme writes it."""
    return PREFIX + base64.b64encode(os.urandom(SECRET_BYTES_NEW)).decode()


def key_of(secret: str | bytes) -> bytes:
    """The bytes of a secret: `whsec_` and Base64, or any text. Raises ValueError."""
    text = secret.decode() if isinstance(secret, bytes) else secret
    key = text.encode()
    if text.startswith(PREFIX):
        try:
            key = base64.b64decode(text.removeprefix(PREFIX), validate=True)
        except binascii.Error as error:
            raise ValueError(f"what follows {PREFIX} in a secret is not Base64: {error}") from None
    if len(key) < SECRET_BYTES_MIN:
        raise ValueError(f"a secret of {len(key)} bytes can be guessed: {SECRET_BYTES_MIN} at least are needed")
    return key


def sign(id: str, timestamp: int, body: bytes, secrets: str | bytes | Sequence[str | bytes]) -> dict[str, str]:
    """The headers that sign a request; the time is in seconds since 1970."""
    return sign_with_keys(id, timestamp, body, [key_of(each) for each in _several(secrets)])


def sign_with_keys(id: str, timestamp: int, body: bytes, keys: Sequence[bytes]) -> dict[str, str]:
    """The same with the bytes of the secrets."""
    made = [f"{VERSION},{_signature(key, id, str(timestamp), body)}" for key in keys]
    return {ID: id, TIMESTAMP: str(timestamp), SIGNATURE: " ".join(made)}


def verify(
    body: bytes,
    headers: Mapping[str, str],
    secrets: str | bytes | Sequence[str | bytes],
    *,
    tolerance: float = TOLERANCE_SECONDS,
    now: float | None = None,
) -> str:
    """The id of a request that was signed with one of the secrets, at most `tolerance` seconds ago. The body is as it
    came, byte for byte. The id is the same for every attempt: a receiver that stores the ids it has handled does
    nothing twice. Raises InvalidSignature, and ValueError for what is no secret."""
    keys = [key_of(each) for each in _several(secrets)]
    found = {name.lower(): value for name, value in headers.items()}
    for name in (ID, TIMESTAMP, SIGNATURE):
        if not found.get(name):
            raise InvalidSignature(f"the request has no header {name}")
    id, sent, given = found[ID], found[TIMESTAMP], found[SIGNATURE]
    if not (sent.isascii() and sent.isdigit() and len(sent) < 16):
        raise InvalidSignature(f"{TIMESTAMP} must be seconds since 1970 (got {sent!r})")
    age = (time.time() if now is None else now) - int(sent)
    if abs(age) > tolerance:
        raise InvalidSignature(f"the request was signed {age:.0f} seconds ago; {tolerance:.0f} are tolerated")
    wanted = [_signature(key, id, sent, body).encode() for key in keys]
    for each in given.split():
        version, _, signature = each.partition(",")
        if version == VERSION and any(hmac.compare_digest(signature.encode(), one) for one in wanted):
            return id
    raise InvalidSignature("no signature of the request fits")


def _signature(key: bytes, id: str, timestamp: str, body: bytes) -> str:
    content = b"%s.%s.%s" % (id.encode(), timestamp.encode(), body)
    return base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode()


def _several(secrets: str | bytes | Sequence[str | bytes]) -> Sequence[str | bytes]:
    found = [secrets] if isinstance(secrets, str | bytes) else list(secrets)
    if not found:
        raise ValueError("no secret is given")
    return found
