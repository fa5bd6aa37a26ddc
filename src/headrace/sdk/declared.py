"""What an application declares: what it reads, and how it sends to topics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

from headrace.sdk.payload import field_of
from headrace.sdk.scenario import Tuning, scenario
from headrace.sdk.settings import Effective
from headrace.sdk.transport import Wish

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
    """The application says itself that it sends to the topic."""
    owner: str = ""
    description: str = ""
    contacts: tuple[str, ...] = ()
    payload: Any = None
    """What its messages are, for who reads of it: it is documented, not checked."""


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


def tuned(name: str, overrides: Mapping[str, Any]) -> Tuning:
    """A scenario's values, with some of one's own."""
    return scenario(name).tuning.changed(overrides)


def in_lots_by(tuning: Tuning) -> bool:
    """Whether nothing is decided message by message as long as all goes well."""
    return not (tuning.ordered or tuning.exactly_once or tuning.partitions)


def wish_of(declared: Subscription, now: Effective) -> Wish:
    """What a subscription asks of the system."""
    tuning = now.tuning
    return Wish(
        declared.topic,
        declared.group,
        ordered=tuning.ordered,
        replay=tuning.replay,
        private=tuning.private,
        timeout=tuning.timeout,
        attempts=tuning.attempts,
        ladder=tuning.ladder,
        credit=0 if now.paused else tuning.credit,
        exactly_once=tuning.exactly_once,
        partitions=tuning.partitions,
        traced=tuning.traced,
    )


def as_bytes(value: bytes | str) -> bytes:
    """A key or a header's value, as it is sent."""
    return value if isinstance(value, bytes) else value.encode()


def keys_of(
    plan: TopicPlan, payloads: Sequence[Any], keys: Sequence[bytes | str | None] | None
) -> Iterable[bytes | None]:
    """The keys of messages that are sent together: those that were given, or what the plan says."""
    if keys is not None:
        return [None if key is None else as_bytes(key) for key in keys]
    if plan.key:
        return [field_of(payload, plan.key) for payload in payloads]
    return repeat(None, len(payloads))
