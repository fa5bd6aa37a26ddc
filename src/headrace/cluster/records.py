"""The records that etcd keeps of a cluster, under `/headrace/CLUSTER/`, as JSON.

    cluster     its id and feature level, written once
    members/N   which data directory is node N's, and how often it has been started; permanent
    groups/G    who leads the group, who is in sync, and its settings; changed by compare-and-swap alone
    nodes/N     that node N runs, and where; lives by a lease, for detection and never for safety
    admins/G    an administrator that the group is given, until its leader has taken it (`given_admin.py`)

Reading is strict: a record that another program wrote, or a hand, is refused with the field that is wrong. Fields that
are not known are refused too: a newer version raises the feature level before it writes them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from typing import Any, TypeVar
from uuid import UUID

from headrace.addresses import parse_address
from headrace.cluster.errors import RecordInvalid
from headrace.cluster.etcd import View
from headrace.cluster.versions import FEATURE_LEVEL

ROOT = "/headrace"

INT32_MAX = (1 << 31) - 1
INT64_MAX = (1 << 63) - 1
LAG_MS = 3_000
"""The default of `replica.lag.time.max.ms`. Kafka's is 30 s; here a follower that hangs stalls the whole group."""

R = TypeVar("R", bound="Record")


class Record:
    """A frozen dataclass whose fields are those of the JSON object."""

    __slots__ = ()

    def encode(self) -> bytes:
        return json.dumps(asdict(self), separators=(",", ":")).encode()  # type: ignore[call-overload]


@dataclass(frozen=True, slots=True)
class Cluster(Record):
    """What `cluster init` writes once. Every data directory takes the id and refuses another."""

    id: str
    feature_level: int = FEATURE_LEVEL


@dataclass(frozen=True, slots=True)
class Member(Record):
    """The data directory of a node. Directory and starts together are the node's incarnation."""

    directory_id: str
    starts: int


@dataclass(frozen=True, slots=True)
class Incarnation:
    """A node from one start of its process to the end of it. After a restart it is another one, and leads only once it
    is elected again."""

    node: int
    directory_id: str
    starts: int


@dataclass(frozen=True, slots=True)
class Group(Record):
    """Who leads, who is in sync, and the group's settings. `changes.py` has every way to change it."""

    version: int
    """Raised by each change. Nodes remember it: a lower one is an etcd that went back in time."""
    epoch: int
    """Raised by each election, 0 before the first."""
    leader: Incarnation | None
    isr: tuple[str, ...]
    """Directories that have everything that is committed, and that a commit waits for."""
    elr: tuple[str, ...]
    """Directories that left the ISR when it had fewer than `min_isr` members: nothing was committed since, so they have
    everything too (KIP-966)."""
    replicas: tuple[int, ...]
    """Nodes in order of preference, also those that are being added and removed, as Kafka has it."""
    adding: tuple[int, ...]
    removing: tuple[int, ...]
    transfer_to: int | None
    """The node that is asked to lead next."""
    min_isr: int
    unclean: bool
    """Whether a node that lacks committed messages may lead when no other is left."""
    lag_ms: int = LAG_MS
    """How far a follower may lag before it leaves the ISR."""


@dataclass(frozen=True, slots=True)
class Node(Record):
    """A node that runs."""

    directory_id: str
    starts: int
    group: str
    rack: str
    addresses: dict[str, str]
    """By door, and `peer` for the other nodes."""
    boot_id: str
    """Of the machine. After another boot what was not synced is gone."""
    protocol_min: int
    protocol_max: int
    feature_level: int = FEATURE_LEVEL
    """The highest that the node knows."""

    @property
    def peer(self) -> tuple[str, int] | None:
        """Where the other nodes reach it."""
        return parse_address(self.addresses.get("peer", "off"))


@dataclass(frozen=True, slots=True)
class AdminRecord(Record):
    """A user with SCRAM credentials, who is to be an administrator."""

    id: str
    user: str
    credentials: tuple[dict[str, Any], ...] = field(repr=False)
    """As the broker's own records have them."""


@dataclass(frozen=True, slots=True)
class Keys:
    """Where the records of one cluster lie."""

    name: str

    @property
    def prefix(self) -> str:
        return f"{ROOT}/{self.name}/"

    @property
    def cluster(self) -> str:
        return f"{self.prefix}cluster"

    def member(self, node: int) -> str:
        return f"{self.prefix}members/{node}"

    def group(self, name: str) -> str:
        return f"{self.prefix}groups/{name}"

    def node(self, node: int) -> str:
        return f"{self.prefix}nodes/{node}"

    def admin(self, group: str) -> str:
        return f"{self.prefix}admins/{group}"


# --- reading ---


def parse_cluster(value: bytes, key: str, known: int = FEATURE_LEVEL) -> Cluster:
    """Raises RecordInvalid, also for a feature level above `known`."""
    cluster = _read(value, key, Cluster, {"id": _uuid, "feature_level": _number(1)})
    if cluster.feature_level > known:
        raise RecordInvalid(
            f"the cluster has feature level {cluster.feature_level}, and this version knows {known} at most. "
            "Use a newer Headrace."
        )
    return cluster


def parse_member(value: bytes, key: str) -> Member:
    """Raises RecordInvalid."""
    return _read(value, key, Member, {"directory_id": _uuid, "starts": _number(1)})


def parse_group(value: bytes, key: str) -> Group:
    """Raises RecordInvalid, also for a record whose fields contradict each other."""
    group = _read(
        value,
        key,
        Group,
        {
            "version": _number(1),
            "epoch": _number(0, INT32_MAX),
            "leader": _optional(_incarnation),
            "isr": _distinct(_uuid),
            "elr": _distinct(_uuid),
            "replicas": _distinct(_node),
            "adding": _distinct(_node),
            "removing": _distinct(_node),
            "transfer_to": _optional(_node),
            "min_isr": _number(1, INT32_MAX),
            "unclean": _flag,
            "lag_ms": _number(1, INT32_MAX),
        },
    )
    for problem in contradictions(group):
        raise RecordInvalid(f"etcd's record {key} contradicts itself: {problem}")
    return group


def parse_group_fields(values: Any) -> Group:
    """A group's record that another node sends, or a file has. Raises ValueError."""
    try:
        return parse_group(json.dumps(values).encode(), "of a node")
    except RecordInvalid as error:
        raise ValueError(str(error)) from None


def parse_node(value: bytes, key: str) -> Node:
    """Raises RecordInvalid."""
    return _read(
        value,
        key,
        Node,
        {
            "directory_id": _uuid,
            "starts": _number(1),
            "group": _text,
            "rack": _text,
            "addresses": _texts,
            "boot_id": _text,
            "protocol_min": _number(0, INT32_MAX),
            "protocol_max": _number(0, INT32_MAX),
            "feature_level": _number(1),
        },
    )


def parse_admin(value: bytes, key: str) -> AdminRecord:
    """Raises RecordInvalid, which shows nothing of the record."""
    try:
        return _read(value, key, AdminRecord, {"id": _uuid, "user": _text, "credentials": _objects})
    except RecordInvalid:
        raise RecordInvalid(
            f"etcd's record {key} is no administrator that this version can take. Run headrace cluster admin again."
        ) from None


def read_numbers(view: View, keys: Keys) -> dict[str, int]:
    """The numbers of nodes by the data directories that they were last started with. Raises RecordInvalid."""
    members = f"{keys.prefix}members/"
    found = ((key, each) for key, each in view.entries.items() if key.startswith(members))
    return {parse_member(each.value, key).directory_id: int(key.removeprefix(members)) for key, each in found}


def contradictions(group: Group) -> list[str]:
    """What no change may bring about."""
    found = []
    if group.leader is not None and group.leader.directory_id not in group.isr:
        found.append("the leader is not in the ISR")
    if group.leader is not None and group.leader.node not in group.replicas:
        found.append("the leader is not a replica")
    if group.leader is not None and group.epoch == 0:
        found.append("there is a leader before the first election")
    if set(group.isr) & set(group.elr):
        found.append("the ISR and the ELR have a member in common")
    if group.elr and len(group.isr) >= group.min_isr:
        found.append("the ELR has members although the ISR has enough")
    if group.epoch == 0 and (group.isr or group.elr):
        found.append("there are replicas in sync before the first election")
    if not group.replicas:
        found.append("there is no replica")
    if not set(group.adding) | set(group.removing) <= set(group.replicas):
        found.append("what is added or removed is not among the replicas")
    if set(group.adding) & set(group.removing):
        found.append("a replica is added and removed")
    if group.transfer_to is not None and group.transfer_to not in group.replicas:
        found.append("the node that is to lead next is not a replica")
    return found


Read = Callable[[Any], Any]


def _node(value: Any) -> int:
    return _number(0, INT32_MAX)(value)


def _read(value: bytes, key: str, kind: type[R], readers: dict[str, Read]) -> R:
    try:
        found = json.loads(value)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise RecordInvalid(f"etcd's record {key} is not a JSON object ({value[:100]!r})")
    if unknown := sorted(found.keys() - readers.keys()):
        raise RecordInvalid(
            f"etcd's record {key} has a field that this version does not know ({unknown[0]!r}). Use a newer Headrace."
        )
    values = {}
    for name, read in readers.items():
        if name not in found:
            raise RecordInvalid(f"etcd's record {key} has no field {name!r}")
        try:
            values[name] = read(found[name])
        except ValueError as error:
            raise RecordInvalid(f"etcd's record {key}: {name} must be {error} (got {found[name]!r})") from None
    return kind(**values)


def _number(least: int, most: int = INT64_MAX) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if type(value) is not int or not least <= value <= most:
            raise ValueError(f"a whole number of {least} to {most}")
        return value

    return read


def _uuid(value: Any) -> str:
    try:
        if isinstance(value, str) and str(UUID(value)) == value:
            return value
    except ValueError:
        pass
    raise ValueError("a UUID")


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("text")
    return value


def _texts(value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(each, str) for each in value.values()):
        raise ValueError("an object of texts")
    return value


def _objects(value: Any) -> tuple[dict[str, Any], ...]:
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise ValueError("a list of objects")
    return tuple(value)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def _optional(read: Read) -> Read:
    return lambda value: None if value is None else read(value)


def _distinct(read: Read) -> Callable[[Any], tuple[Any, ...]]:
    def read_all(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise ValueError("a list")
        found = tuple(map(read, value))
        if len(set(found)) < len(found):
            raise ValueError("a list without repetitions")
        return found

    return read_all


def _incarnation(value: Any) -> Incarnation:
    if not isinstance(value, dict) or value.keys() != {each.name for each in fields(Incarnation)}:
        raise ValueError("null or an object of node, directory_id and starts")
    return Incarnation(_node(value["node"]), _uuid(value["directory_id"]), _number(1)(value["starts"]))
