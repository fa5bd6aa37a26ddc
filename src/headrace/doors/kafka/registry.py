"""Which Kafka APIs the door answers, in which versions.

One line for each API: its key, its kio schema, the versions that Kafka 4.3 advertises, and the first flexible version
(whose headers carry tagged fields). Handler modules are found by key and name under `handlers/` and imported when first
called, so that a broker starts without them. Produce and Fetch are the hot path: `produce.py` and `fetch.py`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cache, lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.format.schema import load_schema

if TYPE_CHECKING:
    from headrace.doors.kafka.call import Call

Handler = Callable[["Call", Any], Awaitable[dict[str, Any] | None]]

PRODUCE = 0
FETCH = 1
SASL_HANDSHAKE = 17
API_VERSIONS = 18
SASL_AUTHENTICATE = 36
NEVER = 1 << 15


class Api(NamedTuple):
    """One API of the table."""

    key: int
    name: str
    """kio's name of the schema, which is also the handler's."""
    oldest: int
    newest: int
    flexible: int
    """The first version with tagged fields; NEVER where there is none."""


APIS: dict[int, Api] = {
    api.key: api
    for api in (
        Api(0, "produce", 3, 13, 9),
        Api(1, "fetch", 4, 18, 12),
        Api(2, "list_offsets", 1, 11, 6),
        Api(3, "metadata", 0, 13, 9),
        Api(8, "offset_commit", 2, 10, 8),
        Api(9, "offset_fetch", 1, 10, 6),
        Api(10, "find_coordinator", 0, 6, 3),
        Api(11, "join_group", 0, 9, 6),
        Api(12, "heartbeat", 0, 4, 4),
        Api(13, "leave_group", 0, 5, 4),
        Api(14, "sync_group", 0, 5, 4),
        Api(15, "describe_groups", 0, 6, 5),
        Api(16, "list_groups", 0, 5, 3),
        Api(17, "sasl_handshake", 0, 1, NEVER),
        Api(18, "api_versions", 0, 4, 3),
        Api(19, "create_topics", 2, 7, 5),
        Api(20, "delete_topics", 1, 6, 4),
        Api(21, "delete_records", 0, 2, 2),
        Api(22, "init_producer_id", 0, 5, 2),
        Api(23, "offset_for_leader_epoch", 2, 4, 4),
        Api(24, "add_partitions_to_txn", 0, 5, 3),
        Api(25, "add_offsets_to_txn", 0, 4, 3),
        Api(26, "end_txn", 0, 5, 3),
        Api(27, "write_txn_markers", 1, 2, 1),
        Api(28, "txn_offset_commit", 0, 5, 3),
        Api(29, "describe_acls", 1, 3, 2),
        Api(30, "create_acls", 1, 3, 2),
        Api(31, "delete_acls", 1, 3, 2),
        Api(32, "describe_configs", 1, 4, 4),
        Api(33, "alter_configs", 0, 2, 2),
        Api(35, "describe_log_dirs", 1, 5, 2),
        Api(36, "sasl_authenticate", 0, 2, 2),
        Api(37, "create_partitions", 0, 3, 2),
        Api(42, "delete_groups", 0, 2, 2),
        Api(43, "elect_leaders", 0, 2, 2),
        Api(44, "incremental_alter_configs", 0, 1, 1),
        Api(45, "alter_partition_reassignments", 0, 1, 0),
        Api(46, "list_partition_reassignments", 0, 0, 0),
        Api(47, "offset_delete", 0, 0, NEVER),
        Api(48, "describe_client_quotas", 0, 1, 1),
        Api(49, "alter_client_quotas", 0, 1, 1),
        Api(50, "describe_user_scram_credentials", 0, 0, 0),
        Api(51, "alter_user_scram_credentials", 0, 0, 0),
        Api(55, "describe_quorum", 0, 2, 0),
        Api(60, "describe_cluster", 0, 2, 0),
        Api(61, "describe_producers", 0, 0, 0),
        Api(65, "describe_transactions", 0, 0, 0),
        Api(66, "list_transactions", 0, 2, 0),
        Api(68, "consumer_group_heartbeat", 0, 1, 0),
        Api(69, "consumer_group_describe", 0, 1, 0),
        Api(74, "list_config_resources", 0, 1, 0),
        Api(75, "describe_topic_partitions", 0, 0, 0),
    )
}

# What is advertised where it differs from what is answered. Old librdkafka takes a missing Produce 0 for a broker
# without compression, so Kafka 4 advertises it and refuses it, and so does this door.
ADVERTISED_OLDEST: dict[int, int] = {PRODUCE: 0}


# Keys are the clients' words.
@lru_cache(maxsize=128)
def not_offered(key: int) -> Api | None:
    """An API that Kafka has and this door does not offer: not advertised, and answered with an error."""
    # Of use to clients of APIs that few have: not at the start.
    from kio.schema.index import api_key_map, schema_name_map

    name = api_key_map.get(key)
    if name is None or key in APIS:
        return None
    versions = schema_name_map[name]
    flexible = (version for version in versions if load_schema(key, version, "request").__flexible__)
    return Api(key, name, min(versions), max(versions), next(flexible, NEVER))


@cache
def handler(key: int) -> Handler:
    """The `handle` of an API of the table, imported now if it was not."""
    module = import_module(f"headrace.doors.kafka.handlers.k{key:02d}_{APIS[key].name}")
    handle: Handler = module.handle
    return handle


def versions_table() -> str:
    """The table of docs/kafka.md."""
    lines = ["| key | API | versions |", "| --- | --- | --- |"]
    for api in APIS.values():
        name = "".join(word.capitalize() for word in api.name.split("_"))
        versions = f"{api.oldest} to {api.newest}" if api.oldest < api.newest else str(api.oldest)
        lines.append(f"| {api.key} | {name} | {versions} |")
    return "\n".join(lines) + "\n"
