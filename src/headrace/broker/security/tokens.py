"""API tokens: what programs show instead of a password. `hr_ID_SECRET`: the id is no secret, and the broker keeps a
hash of the rest. The secret has so many random bits that a plain hash is as good as a slow one.

A token that signs (RocketMQ's access key and signature) is kept as it is, since a signature cannot be verified by less.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace.broker.security.identity import Scope
from headrace.broker.security.rules import ANY, Rule, allow
from headrace.broker.security.words import (
    TEXT_MAX,
    check_operation,
    parse_operation,
    parse_resource,
    pattern_of,
    word,
    written_name,
)
from headrace.errors import InvalidRule

PREFIX = "hr_"
ID_BYTES = 8
SECRET_BYTES = 24
NOTE_CHARACTERS_MAX = 256
SCOPE_RULES_MAX = 100

_TEXT = re.compile(rf"{PREFIX}([0-9a-f]{{{2 * ID_BYTES}}})_([0-9a-f]{{{2 * SECRET_BYTES}}})")


@dataclass(frozen=True, slots=True)
class Token:
    """A token, without its secret."""

    id: str
    user: str
    created_at: int
    """In milliseconds since the epoch."""
    expires_at: int
    """The same; 0: it does not expire."""
    scope: Scope | None = field(compare=False)
    """What it may be used for at most; None: all that its user may do."""
    note: str
    digest: bytes = field(repr=False)
    """Of its secret; empty where it is kept."""
    secret: str = field(default="", repr=False)
    """Of a token that signs."""

    @property
    def signs(self) -> bool:
        return bool(self.secret)

    def is_valid(self, now_ms: int) -> bool:
        return not self.expires_at or now_ms < self.expires_at

    def fits(self, secret: str) -> bool:
        """Whether it has that secret."""
        return hmac.compare_digest(self.digest or digest_of(self.secret), digest_of(secret))


def digest_of(secret: str) -> bytes:
    """What is kept of a secret."""
    return hashlib.sha256(secret.encode()).digest()


def text_of(token_id: str, secret: str) -> str:
    """A token as its owner gets it, once."""
    return f"{PREFIX}{token_id}_{secret}"


def parse(text: str) -> tuple[str, str] | None:
    """The id and the secret of a token; None: the text is none."""
    found = _TEXT.fullmatch(text)
    return None if found is None else (found[1], found[2])


# --- scopes as text ---------------------------------------------------------------------------------------------------


def rule_of_scope(text: str) -> Rule:
    """What a scope allows: `OPERATION:RESOURCE:NAME`, as in `write:topic:orders*`. Raises InvalidRule."""
    operation_text, _, rest = text.partition(":")
    resource_text, _, name = rest.partition(":")
    if not name:
        raise InvalidRule(f"a scope is OPERATION:RESOURCE:NAME, as in write:topic:orders* (got '{text[:TEXT_MAX]}')")
    operation, resource = parse_operation(operation_text), parse_resource(resource_text)
    check_operation(operation, resource)
    pattern, bare = pattern_of(name)
    return allow(ANY, operation, resource, bare, pattern)


def scope_text(rule: Rule) -> str:
    """The same the other way round."""
    return f"{word(rule.operation)}:{word(rule.resource)}:{written_name(rule)}"


def scope_of(texts: Sequence[str]) -> Scope | None:
    """The scope of these; None: there are none. Raises InvalidRule."""
    if len(texts) > SCOPE_RULES_MAX:
        raise InvalidRule(f"a token has at most {SCOPE_RULES_MAX} scopes (got {len(texts)}). Give its user a role.")
    return Scope([rule_of_scope(each) for each in texts]) if texts else None
