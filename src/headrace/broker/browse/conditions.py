"""What a message must have to be shown: all of what is given."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.broker.browse.expression import Test
from headrace.broker.browse.view import View


@dataclass(frozen=True, slots=True)
class Conditions:
    """Those of one reader."""

    key: bytes | None = None
    key_contains: bytes = b""
    value_contains: bytes = b""
    header: tuple[str, bytes | None] | None = None
    """A name, and the value that it has; None: any."""
    since_ms: int | None = None
    until_ms: int | None = None
    where: Test | None = None

    def meets(self, view: View) -> bool:
        """Whether a message has it all; what costs the most is looked at last."""
        if self.since_ms is not None and view.timestamp < self.since_ms:
            return False
        if self.until_ms is not None and view.timestamp > self.until_ms:
            return False
        if self.key is not None and view.key != self.key:
            return False
        if self.key_contains and self.key_contains not in (view.key or b""):
            return False
        if self.header is not None and not any(
            name == self.header[0] and self.header[1] in (None, content) for name, content in view.headers
        ):
            return False
        if self.value_contains and self.value_contains not in (view.value or b""):
            return False
        return self.where is None or self.where(view)
