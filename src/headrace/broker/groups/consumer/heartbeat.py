"""The heartbeat of the consumer protocol, and its answer.

The protocol is Kafka's, and so are the sentences of its refusals: clients print them.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.broker.groups.consumer.places import Places
from headrace.broker.groups.consumer.viewer import Viewer
from headrace.broker.groups.protocol import Problem

JOINING = 0
LEAVING = -1
LEAVING_FOR_A_WHILE = -2
"""A static member goes and will be back under its instance id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """What a member wants and has. None, and a timeout of -1, mean: unchanged."""

    member_id: str
    epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topics: tuple[str, ...] | None = None
    pattern: str | None = None
    assignor: str | None = None
    owned: Places | None = None
    client_id: str = ""
    client_host: str = ""
    viewer: Viewer | None = None
    """Which topics a pattern of the member can mean; None: all."""

    @property
    def is_full(self) -> bool:
        """Whether the member describes all of itself, and wants all of its assignment."""
        subscribes = self.topics is not None or self.pattern is not None
        return self.epoch == JOINING or (self.rebalance_timeout_ms != -1 and subscribes and self.owned is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer to a heartbeat."""

    problem: Problem = Problem.NONE
    message: str | None = None
    member_id: str | None = None
    epoch: int = 0
    heartbeat_ms: int = 0
    assignment: Places | None = None
    """None: as in an earlier answer."""
