"""What an application declares: what it reads, and how it sends to topics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

from headrace.sdk.payload import field_of
from headrace.sdk.scenario import Tuning, scenario
from headrace.sdk.values import Headers, Key, bytes_of

# Payload, key and the number of partitions, to one of them.
Select = Callable[[Any, bytes | None, int], int]


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """How an application sends to a topic."""

    key: str = ""
    """The field of a payload that is its key."""
    select: Select | None = None
    """Chooses the partition instead of the key."""
    declared: bool = False
    """The application declares that it sends to the topic."""
    owner: str = ""
    description: str = ""
    contacts: tuple[str, ...] = ()
    payload: Any = None
    """The type of its messages: it is documented, not checked."""


NO_PLAN = TopicPlan()


@dataclass(frozen=True, slots=True)
class Subscription:
    """What an application reads, as it was declared."""

    topic: str
    group: str
    scenario: str
    tuning: Tuning
    ordered_by: str
    function: Callable[..., Any]
    description: str = ""

    @property
    def name(self) -> str:
        """By which it is seen and set from outside."""
        return f"{self.topic}/{self.group}"

    def check_beside(self, others: Iterable[Subscription]) -> None:
        """Raises ValueError where another subscription would take messages from this one, and its queue's settings."""
        for other in others:
            chosen, taken = set(self.tuning.partitions), set(other.tuning.partitions)
            if other.name == self.name and not (chosen and taken and chosen.isdisjoint(taken)):
                both = f"{_name_of(other.function)} and {_name_of(self.function)}"
                raise ValueError(
                    f"{both} read the topic {self.topic!r} as the same group, {self.group!r}: each message would go to "
                    "one of them. Give one of them a group of its own: subscribe(..., group=...)"
                )


def make_tuning(name: str, overrides: Mapping[str, Any]) -> Tuning:
    """A scenario's values, with some overridden."""
    return scenario(name).tuning.changed(overrides)


def in_lots_by(tuning: Tuning) -> bool:
    """Whether nothing is decided message by message as long as all goes well."""
    return not (tuning.ordered or tuning.exactly_once or tuning.partitions)


def _name_of(function: Callable[..., Any]) -> str:
    return f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', repr(function))}"


def check_topic(topic: Any) -> None:
    """Raises TypeError for what is no name at all; the system decides whether it takes the name."""
    if type(topic) is not str:
        raise TypeError(f"topic must be a name, as text (got {topic!r})")


def headers_of(headers: Headers) -> dict[str, bytes]:
    """Headers as they are sent. Raises TypeError."""
    if not isinstance(headers, Mapping):
        raise TypeError(f"headers must be a mapping of names to values (got {headers!r})")
    for name in headers:
        if not isinstance(name, str):
            raise TypeError(f"the name of a header must be text (got {name!r})")
    return {name: bytes_of(f"the header {name!r}", value) for name, value in headers.items()}


def keys_of(plan: TopicPlan, payloads: Sequence[Any], keys: Sequence[Key | None] | None) -> Iterable[bytes | None]:
    """The keys of messages that are sent together: those that were given, or those of the plan."""
    if keys is not None:
        return [None if key is None else bytes_of("key", key) for key in keys]
    if plan.key:
        return [field_of(payload, plan.key) for payload in payloads]
    return repeat(None, len(payloads))
