"""Requests and answers of the classic protocol, and the terms that groups of all protocols share.

The protocol is Kafka's, and so are the names and numbers of its refusals; doors of other protocols translate them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import TYPE_CHECKING
from uuid import UUID

from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.broker.groups.group_codec import StoredMember

# Records hold strings with a 16-bit length, and a character takes up to four bytes.
NAME_CHARACTERS_MAX = 8_191


class Problem(IntEnum):
    """Why a group request was refused, by Kafka's number."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    UNKNOWN_TOPIC_OR_PARTITION = 3
    OFFSET_METADATA_TOO_LARGE = 12
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    UNSUPPORTED_VERSION = 35
    INVALID_REQUEST = 42
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    MEMBER_ID_REQUIRED = 79
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    INVALID_REGULAR_EXPRESSION = 128


class GroupError(HeadraceError):
    """A request that was refused, and has changed nothing."""

    def __init__(self, problem: Problem, message: str | None = None) -> None:
        super().__init__(message or problem.name)
        self.problem = problem
        self.message = message
        """What its client prints, where there is more to say than the problem's name."""

    @property
    def kafka_code(self) -> int:
        """Kafka's code of the problem."""
        return self.problem


class State(Enum):
    """The states of a group, by the names that Kafka's tools print."""

    EMPTY = "Empty"
    """No members; offsets may be kept."""
    PREPARING = "PreparingRebalance"
    """Waiting for members to join the next generation."""
    COMPLETING = "CompletingRebalance"
    """The generation is fixed; its leader has yet to say who gets what."""
    STABLE = "Stable"
    """Every member has, or can ask for, its assignment."""
    ASSIGNING = "Assigning"
    """Of the consumer protocol: the group has changed, and its targets have not yet."""
    RECONCILING = "Reconciling"
    """Of the consumer protocol: some members have not reached their targets."""
    DEAD = "Dead"
    """Removed; nothing is accepted any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """A member wants to be part of the next generation."""

    member_id: str
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    """Names and metadata, the most wanted first."""
    session_timeout_ms: int
    rebalance_timeout_ms: int
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    needs_known_id: bool = False
    """A dynamic member is first given an id and must come back with it."""
    may_skip_assignment: bool = False
    """A static leader that returns can be asked to leave the assignment as it is."""
    reason: str = "not provided"


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedMember:
    """A member, as the answer to the leader's join lists it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """The answer to a join."""

    problem: Problem = Problem.NONE
    member_id: str = ""
    generation: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRequest:
    """A member asks for its assignment; the leader brings those of all."""

    member_id: str
    generation: int
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Synced:
    """The answer to a sync."""

    problem: Problem = Problem.NONE
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class Leaver:
    """Who leaves: by member id, or (an administrator) by instance id alone."""

    member_id: str
    instance_id: str | None = None
    reason: str = "not provided"


@dataclass(frozen=True, slots=True)
class Commit:
    """One offset to be committed."""

    topic: str
    topic_id: UUID
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class Committer:
    """The member in whose name offsets are committed; empty: none."""

    member_id: str = ""
    instance_id: str | None = None
    generation: int = -1
    """A member's epoch in a group of the consumer protocol."""
    knows_epochs: bool = True
    """Older clients do not know of the epochs of the consumer protocol."""

    @property
    def is_member(self) -> bool:
        return self.generation >= 0 or bool(self.member_id) or self.instance_id is not None


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group as administrators see it."""

    group_id: str
    state: State
    protocol_type: str
    protocol_name: str
    members: tuple[StoredMember, ...]


@dataclass(frozen=True, slots=True)
class GroupListing:
    """One line of the list of groups."""

    group_id: str
    protocol_type: str
    state: State
    kind: str
    """`classic` or `consumer`: the protocol that its members speak."""
