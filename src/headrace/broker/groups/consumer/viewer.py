"""Which topics the pattern of a member can mean: those that its user may describe.

A heartbeat comes from a session, whose rights decide. A member that was restored from the log has yet to be heard of:
it keeps the topics that it had, and gets no others, so that a new leader neither moves partitions nor shows more than
the last one did.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

from headrace.log.interface import Topic


class Viewer(Hashable, Protocol):
    """As whom a member looks at topics. Members that are equal in this see the same."""

    def visible(self, names: frozenset[str], catalogue: Mapping[str, Topic]) -> frozenset[str]:
        """Those of some names that it may see."""
        ...


@dataclass(frozen=True, slots=True)
class UserViewer:
    """A user."""

    subject: Hashable
    """What its rights depend on."""
    see: Callable[[Iterable[str]], Sequence[str]] = field(compare=False, repr=False)

    def visible(self, names: frozenset[str], catalogue: Mapping[str, Topic]) -> frozenset[str]:
        seen = self.see(names)
        return names if len(seen) == len(names) else frozenset(seen)


@dataclass(frozen=True, slots=True)
class HeldViewer:
    """A member that was not heard of since the group was restored."""

    held: frozenset[UUID]

    def visible(self, names: frozenset[str], catalogue: Mapping[str, Topic]) -> frozenset[str]:
        return frozenset(name for name in names if name in catalogue and catalogue[name].id in self.held)
