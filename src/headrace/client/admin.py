"""Requests about topics, groups and offsets: thin calls, one per API, that raise Kafka's errors.

`Cluster` sends each to the broker that has the answer (controller, coordinator, leaders, all), and retries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from struct import error as struct_error
from typing import Any

from headrace.client import lookups
from headrace.client.cluster import Cluster, Partition
from headrace.client.connection import Connection
from headrace.client.errors import BrokerError, UnsupportedApi, check
from headrace.client.lookups import ListedOffset, TopicState
from headrace.client.messages import request
from headrace.client.wire import INT32, take_string
from headrace.format.error_codes import ErrorCode

EARLIEST = -2
LATEST = -1
MAX_TIMESTAMP = -3

TOPIC_RESOURCE = 2
SET, DELETE = 0, 1
DYNAMIC_TOPIC_CONFIG = 1
LIST_GROUPS = 16
# Topics whose settings one request asks for.
DESCRIBED_AT_ONCE = 500
CLASSIC, CONSUMER = "classic", "consumer"


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One setting of a topic."""

    name: str
    value: str | None
    is_default: bool
    documentation: str | None


@dataclass(frozen=True, slots=True)
class Committed:
    """A group's offset on a partition."""

    offset: int
    leader_epoch: int
    metadata: str


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group in the list of groups."""

    group: str
    protocol_type: str
    state: str
    type: str
    """The protocol of its members: `classic` or `consumer` (KIP-848)."""


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member of a group with its assignment. `epoch` and `target` are of the consumer protocol."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    partitions: tuple[Partition, ...]
    epoch: int | None = None
    target: tuple[Partition, ...] = ()
    """Its assignment once all members have revoked what they must."""


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group with its members."""

    group: str
    state: str
    protocol_type: str
    protocol: str
    """The assignor, of the classic members or of the broker."""
    members: tuple[GroupMember, ...]
    type: str
    epoch: int | None = None
    assignment_epoch: int | None = None
    """The epoch of the targets."""


class Admin:
    """The administrative calls of one cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    # --- topics ---

    async def create_topic(
        self,
        name: str,
        partitions: int = -1,
        config: Mapping[str, str] | None = None,
        *,
        replication: int = -1,
        validate_only: bool = False,
    ) -> TopicState | None:
        """Create a topic and wait for its leaders; -1 leaves a number to the broker."""
        configs = [{"name": key, "value": value} for key, value in (config or {}).items()]
        topic = {"name": name, "num_partitions": partitions, "replication_factor": replication, "configs": configs}
        asked = request("create_topics", 7, topics=[topic], timeout=self._ms(), validate_only=validate_only)
        [result] = (await self._cluster.call_controller(asked)).topics
        check(result.error_code, f"topic {name}", result.error_message)
        if validate_only:
            return None

        async def appeared() -> TopicState:
            state = (await self._cluster.refresh([name]))[name]
            if isinstance(state, BrokerError):
                raise state
            for each in state.partitions:
                await self._cluster.leader(name, each.index)
            return state

        return await self._cluster.retry(appeared, topics=[name])

    async def ensure_topic(self, name: str, partitions: int = -1, config: Mapping[str, str] | None = None) -> None:
        """Create a topic unless it exists, whatever its settings are then. One that exists takes no right to create."""
        self._cluster.forget([name])
        try:
            await self._cluster.topic(name)
            return
        except BrokerError as error:
            if error.error is not ErrorCode.unknown_topic_or_partition:
                raise
        try:
            await self.create_topic(name, partitions, config)
        except BrokerError as refused:
            # Another client may have come first.
            if refused.error is not ErrorCode.topic_already_exists:
                raise

    async def delete_topic(self, name: str) -> None:
        asked = request("delete_topics", 6, topics=[{"name": name}], timeout=self._ms())
        [result] = (await self._cluster.call_controller(asked)).responses
        self._cluster.forget([name])
        check(result.error_code, f"topic {name}", result.error_message)

    async def create_partitions(self, name: str, count: int) -> None:
        """Add partitions to a topic, up to `count`."""
        topic = {"name": name, "count": count, "assignments": None}
        asked = request("create_partitions", 3, topics=[topic], timeout=self._ms())
        [result] = (await self._cluster.call_controller(asked)).results
        self._cluster.forget([name])
        check(result.error_code, f"topic {name}", result.error_message)

    async def topic_config(self, name: str, *, documentation: bool = False) -> list[ConfigEntry]:
        """All settings of a topic."""
        resource = {"resource_type": TOPIC_RESOURCE, "resource_name": name, "configuration_keys": None}
        asked = request("describe_configs", 4, resources=[resource], include_documentation=documentation)
        [result] = (await self._cluster.call(asked)).results
        check(result.error_code, f"topic {name}", result.error_message)
        return [
            ConfigEntry(each.name, each.value, int(each.config_source) != DYNAMIC_TOPIC_CONFIG, each.documentation)
            for each in result.configs
        ]

    async def topic_settings(self, names: Sequence[str], keys: Sequence[str]) -> dict[str, dict[str, str]]:
        """Some settings of many topics; those that are gone by now, or do not know such settings, have none."""
        found: dict[str, dict[str, str]] = {}
        for start in range(0, len(names), DESCRIBED_AT_ONCE):
            resources = [
                {"resource_type": TOPIC_RESOURCE, "resource_name": name, "configuration_keys": list(keys)}
                for name in names[start : start + DESCRIBED_AT_ONCE]
            ]
            asked = request("describe_configs", 4, resources=resources)
            for result in (await self._cluster.call(asked)).results:
                found[str(result.resource_name)] = {each.name: each.value or "" for each in result.configs}
        return found

    async def alter_topic_config(self, name: str, set: Mapping[str, str], delete: Iterable[str] = ()) -> None:
        """Change settings of a topic; a deleted one returns to its default."""
        configs = [{"name": key, "config_operation": SET, "value": value} for key, value in set.items()]
        configs += [{"name": key, "config_operation": DELETE, "value": None} for key in delete]
        resource = {"resource_type": TOPIC_RESOURCE, "resource_name": name, "configs": configs}
        asked = request("incremental_alter_configs", 1, resources=[resource])
        [result] = (await self._cluster.call_controller(asked)).responses
        check(result.error_code, f"topic {name}", result.error_message)

    async def sizes(self) -> dict[Partition, int]:
        """Bytes kept of every partition, over all brokers."""
        found: dict[Partition, int] = {}
        for reply in await self._cluster.call_all(request("describe_log_dirs", 4, topics=None)):
            check(reply.error_code, "log directories")
            for folder in reply.results:
                check(folder.error_code, f"log directory {folder.log_dir}")
                for topic in folder.topics:
                    for each in topic.partitions:
                        key = (str(topic.name), int(each.partition_index))
                        found[key] = max(found.get(key, 0), int(each.partition_size))
        return found

    # --- offsets ---

    async def list_offsets(
        self, wanted: Mapping[Partition, int], *, committed: bool = False
    ) -> dict[Partition, ListedOffset]:
        """Per partition the offset at a time (ms), or EARLIEST, LATEST, MAX_TIMESTAMP.

        With `committed`, the end is the last stable offset.
        """
        found: dict[Partition, ListedOffset] = {}

        async def ask(connection: Connection, partitions: list[Partition]) -> None:
            connection.require(lookups.LIST_OFFSETS, lookups.LIST_OFFSETS_VERSION)
            topics = {
                topic: [(each[1], wanted[each]) for each in of_topic]
                for topic, of_topic in group_by_topic(partitions).items()
            }
            answer = await connection.send(
                lookups.LIST_OFFSETS,
                lookups.LIST_OFFSETS_VERSION,
                lookups.encode_list_offsets(topics, committed),
                lookups.decode_list_offsets,
            )
            for each in answer:
                check(each.error, f"offsets of {each.topic}-{each.partition}")
                found[each.topic, each.partition] = each

        await self._cluster.ask_leaders(wanted, ask)
        return found

    async def delete_records(self, before: Mapping[Partition, int]) -> dict[Partition, int]:
        """Delete the records before these offsets (-1: all). The new start offsets."""
        found: dict[Partition, int] = {}

        async def ask(connection: Connection, partitions: list[Partition]) -> None:
            topics = entries_by_topic(partitions, lambda p: {"partition_index": p[1], "offset": before[p]})
            asked = request("delete_records", 2, topics=topics, timeout=self._ms())
            for topic in (await connection.call(asked)).topics:
                for each in topic.partitions:
                    key = (str(topic.name), int(each.partition_index))
                    check(each.error_code, f"records of {key[0]}-{key[1]}")
                    found[key] = int(each.low_watermark)

        await self._cluster.ask_leaders(before, ask)
        return found

    # --- groups ---

    async def groups(self) -> list[GroupListing]:
        """All groups, over all brokers."""

        def asked(connection: Connection) -> Any:
            return request("list_groups", 5 if connection.speaks(LIST_GROUPS, 5) else 4)

        found = []
        for reply in await self._cluster.call_all(asked):
            check(reply.error_code, "groups")
            found += [
                GroupListing(
                    str(each.group_id),
                    each.protocol_type,
                    each.group_state,
                    getattr(each, "group_type", "").lower() or CLASSIC,
                )
                for each in reply.groups
            ]
        return sorted(found, key=lambda each: each.group)

    async def describe_group(self, group: str) -> GroupDescription:
        """A group of either protocol; one that does not exist is Dead."""
        reply = await self._cluster.call_coordinator(
            group, request("describe_groups", 5, groups=[group]), lambda reply: reply.groups[0].error_code
        )
        [found] = reply.groups
        if found.group_state == "Dead" and (consumers := await self._describe_consumers(group)) is not None:
            return consumers
        members = tuple(
            GroupMember(
                each.member_id,
                each.group_instance_id,
                each.client_id,
                each.client_host,
                _assignment(each.member_assignment) if found.protocol_type == "consumer" else (),
            )
            for each in found.members
        )
        return GroupDescription(group, found.group_state, found.protocol_type, found.protocol_data, members, CLASSIC)

    async def _describe_consumers(self, group: str) -> GroupDescription | None:
        """A group of the consumer protocol; None where it is not one."""
        try:
            reply = await self._cluster.call_coordinator(
                group,
                request("consumer_group_describe", 0, group_ids=[group]),
                lambda reply: reply.groups[0].error_code,
            )
        except UnsupportedApi:
            return None
        except BrokerError as error:
            if error.error in (ErrorCode.group_id_not_found, ErrorCode.unsupported_version):
                return None
            raise
        [found] = reply.groups
        members = tuple(
            GroupMember(
                each.member_id,
                each.instance_id,
                each.client_id,
                each.client_host,
                _places(each.assignment),
                int(each.member_epoch),
                _places(each.target_assignment),
            )
            for each in found.members
        )
        return GroupDescription(
            group,
            found.group_state,
            CONSUMER,
            found.assignor_name,
            members,
            CONSUMER,
            int(found.group_epoch),
            int(found.assignment_epoch),
        )

    async def committed(
        self, group: str, partitions: Iterable[Partition] | None = None, *, stable: bool = False
    ) -> dict[Partition, Committed]:
        """The offsets that a group has committed, on these partitions or on all.

        With `stable`, this waits for the end of transactions that have sent offsets of the group: a consumer that takes
        over from a producer in the middle of one must not begin before it.
        """
        topics = None if partitions is None else indexes_by_topic(partitions)
        asked = request("offset_fetch", 8, groups=[{"group_id": group, "topics": topics}], require_stable=stable)
        [reply] = (await self._cluster.call_coordinator(group, asked, _group_error)).groups
        found = {}
        for topic in reply.topics:
            for each in topic.partitions:
                if each.committed_offset >= 0:
                    found[str(topic.name), int(each.partition_index)] = Committed(
                        int(each.committed_offset), int(each.committed_leader_epoch), each.metadata or ""
                    )
        return found

    async def commit(self, group: str, offsets: Mapping[Partition, int], metadata: str = "") -> None:
        """Commit offsets of a group that has no members."""
        topics = entries_by_topic(
            offsets,
            lambda p: {"partition_index": p[1], "committed_offset": offsets[p], "committed_metadata": metadata},
        )
        asked = request(
            "offset_commit", 8, group_id=group, generation_id_or_member_epoch=-1, member_id="", topics=topics
        )
        await self._cluster.call_coordinator(group, asked, first_partition_error)

    async def delete_offsets(self, group: str, partitions: Iterable[Partition]) -> None:
        topics = entries_by_topic(partitions, lambda p: {"partition_index": p[1]})
        asked = request("offset_delete", 0, group_id=group, topics=topics)
        await self._cluster.call_coordinator(
            group, asked, lambda reply: reply.error_code or first_partition_error(reply)
        )

    async def delete_group(self, group: str) -> None:
        asked = request("delete_groups", 2, groups_names=[group])
        await self._cluster.call_coordinator(group, asked, lambda reply: reply.results[0].error_code)

    # --- producers ---

    async def producer_id(self) -> tuple[int, int]:
        """A new producer id and its epoch."""

        asked = request("init_producer_id", 4, transactional_id=None, transaction_timeout=0x7FFFFFFF)

        async def attempt() -> tuple[int, int]:
            reply = await (await self._cluster.any_node()).call(asked)
            check(reply.error_code, "a producer id")
            return int(reply.producer_id), int(reply.producer_epoch)

        return await self._cluster.retry(attempt)

    def _ms(self) -> int:
        return int(self._cluster.timeout * 1000)


def group_by_topic(partitions: Iterable[Partition]) -> dict[str, list[Partition]]:
    """Partitions by topic."""
    found: dict[str, list[Partition]] = {}
    for each in partitions:
        found.setdefault(each[0], []).append(each)
    return found


def indexes_by_topic(partitions: Iterable[Partition]) -> list[dict[str, Any]]:
    """Partitions as several requests list them."""
    return [
        {"name": topic, "partition_indexes": [index for _, index in listed]}
        for topic, listed in group_by_topic(partitions).items()
    ]


def entries_by_topic(
    partitions: Iterable[Partition], entry: Callable[[Partition], dict[str, Any]]
) -> list[dict[str, Any]]:
    return [
        {"name": topic, "partitions": [entry(each) for each in listed]}
        for topic, listed in group_by_topic(partitions).items()
    ]


def first_partition_error(reply: Any) -> int:
    for topic in reply.topics:
        for each in topic.partitions:
            if each.error_code:
                return int(each.error_code)
    return 0


def _group_error(reply: Any) -> int:
    [group] = reply.groups
    return group.error_code or first_partition_error(group)


def _places(assignment: Any) -> tuple[Partition, ...]:
    listed = ((str(each.topic_name), int(index)) for each in assignment.topic_partitions for index in each.partitions)
    return tuple(sorted(listed))


def _assignment(encoded: bytes) -> tuple[Partition, ...]:
    """The partitions in a consumer's assignment; none where it cannot be read: members write any bytes there."""
    found = []
    payload = memoryview(encoded)
    try:
        (topics,) = INT32.unpack_from(payload, 2)
        position = 6
        for _ in range(topics):
            topic, position = take_string(payload, position)
            (count,) = INT32.unpack_from(payload, position)
            for index in range(position + 4, position + 4 + 4 * count, 4):
                found.append((topic or "", int(INT32.unpack_from(payload, index)[0])))
            position += 4 + 4 * count
    except (ValueError, struct_error):
        return ()
    return tuple(found)
