"""One request for each API whose rights can be seen in its reply, and a plain model of Kafka's rules."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kio.schema.errors import ErrorCode
from tests.doors.kafka.wired import batch_of, fetch_fields, produce_fields

from headrace.broker.security import Operation, Resource
from headrace.broker.security.rights import CLUSTER_NAME, OPERATIONS, Pattern, Permission
from headrace.broker.security.rules import Rule
from headrace.log.interface import Topic

READ, WRITE, CREATE, DELETE = Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE
ALTER, DESCRIBE, CLUSTER_ACTION = Operation.ALTER, Operation.DESCRIBE, Operation.CLUSTER_ACTION
DESCRIBE_CONFIGS, ALTER_CONFIGS = Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS
TOPIC, GROUP, CLUSTER, ID = Resource.TOPIC, Resource.GROUP, Resource.CLUSTER, Resource.TRANSACTIONAL_ID
OF_CLUSTER = (CLUSTER, CLUSTER_NAME)

NO_TOPIC = ErrorCode.topic_authorization_failed
NO_GROUP = ErrorCode.group_authorization_failed
NO_CLUSTER = ErrorCode.cluster_authorization_failed
NO_ID = ErrorCode.transactional_id_authorization_failed
UNAUTHORIZED = (NO_TOPIC, NO_GROUP, NO_CLUSTER, NO_ID)

# The topic, group and transactional id that everything is asked of, and where from.
T, G, X = "orders-1", "billing", "payer"
HOST = "127.0.0.1"
# No transaction has it: one that is described must have begun to be readable.
UNUSED = "p-unused"

# --- the model --------------------------------------------------------------------------------------------------------

May = Callable[[Operation, Resource, str], bool]
Expected = Callable[[May, bool], ErrorCode | None]

IMPLIES = {DESCRIBE: (READ, WRITE, DELETE, ALTER), DESCRIBE_CONFIGS: (ALTER_CONFIGS,)}


def may_of(rules: list[Rule], user: str) -> May:
    """What a user may do by Kafka's rules, asked the slow way."""

    def is_about(rule: Rule, resource: Resource, name: str) -> bool:
        return (
            rule.user in ("*", user)
            and rule.host in ("*", HOST)
            and rule.resource is resource
            and (name.startswith(rule.name) if rule.pattern is Pattern.PREFIXED else rule.name in ("*", name))
        )

    def may(operation: Operation, resource: Resource, name: str) -> bool:
        if user == "root":
            return True
        about = [rule for rule in rules if is_about(rule, resource, name)]
        if any(rule.permission is Permission.DENY and rule.operation in (operation, Operation.ALL) for rule in about):
            return False
        enough = (operation, Operation.ALL, *IMPLIES.get(operation, ()))
        return any(rule.permission is Permission.ALLOW and rule.operation in enough for rule in about)

    return may


_NAMES = {
    TOPIC: [
        ("orders-1", Pattern.LITERAL),
        ("orders", Pattern.PREFIXED),
        ("*", Pattern.LITERAL),
        ("o", Pattern.LITERAL),
    ],
    GROUP: [("billing", Pattern.LITERAL), ("bill", Pattern.PREFIXED), ("*", Pattern.LITERAL)],
    ID: [("payer", Pattern.LITERAL), ("p", Pattern.PREFIXED), ("other", Pattern.LITERAL)],
    CLUSTER: [(CLUSTER_NAME, Pattern.LITERAL)],
}


def some_rules(users: list[str], seed: int) -> list[Rule]:
    """A few rules for each user, about the names that are asked for and those beside them."""
    dice = random.Random(seed)
    rules = []
    for user in users:
        for _ in range(dice.randrange(16)):
            resource = dice.choice((TOPIC, TOPIC, GROUP, ID, CLUSTER))
            name, pattern = dice.choice(_NAMES[resource])
            operation = dice.choice([*sorted(OPERATIONS[resource]), Operation.ALL])
            permission = Permission.DENY if dice.random() < 0.15 else Permission.ALLOW
            host = dice.choice(("*", "*", "*", HOST, "10.0.0.1"))
            whose = "*" if dice.random() < 0.02 else user
            rules.append(Rule(permission, whose, host, operation, resource, pattern, name))
    return rules


# --- what is asked ----------------------------------------------------------------------------------------------------


@dataclass
class Probe:
    """One request, what its reply says, and what it must say to whom: None is anything but a lack of rights."""

    api: str
    version: int
    fields: Callable[[Topic], dict[str, Any]]
    said: Callable[[Any], int]
    expected: Expected
    """Of what the client may, and whether there is such a topic."""


def needs(*rights: tuple[Operation, Resource, str, ErrorCode]) -> Expected:
    """Each of some rights, in this order."""

    def expected(may: May, exists: bool) -> ErrorCode | None:
        return next((code for operation, resource, name, code in rights if not may(operation, resource, name)), None)

    return expected


def topic(operation: Operation) -> Expected:
    return needs((operation, TOPIC, T, NO_TOPIC))


def cluster(operation: Operation) -> Expected:
    return needs((operation, *OF_CLUSTER, NO_CLUSTER))


def either(code: ErrorCode, *rights: tuple[Operation, Resource, str]) -> Expected:
    """One of some rights."""
    return lambda may, exists: None if any(may(*each) for each in rights) else code


def metadata(may: May, exists: bool) -> ErrorCode | None:
    if not may(DESCRIBE, TOPIC, T):
        return NO_TOPIC
    return None if exists or may(CREATE, TOPIC, T) or may(CREATE, *OF_CLUSTER) else NO_TOPIC


def whole(reply: Any) -> int:
    return int(reply.error_code)


def at(*path: str | int) -> Callable[[Any], int]:
    """The error code somewhere in a reply; without a last name, the `error_code` there."""

    def find(reply: Any) -> int:
        for step in path if isinstance(path[-1], str) and path[-1].endswith("code") else (*path, "error_code"):
            reply = reply[step] if isinstance(step, int) else getattr(reply, step)
        return int(reply)

    return find


def in_topic(reply: Any) -> int:
    """Of the one partition, behind what is wrong with the whole."""
    return int(getattr(reply, "error_code", 0) or (reply.topics[0].partitions[0].error_code if reply.topics else 0))


def member(**extra: Any) -> Callable[[Topic], dict[str, Any]]:
    return lambda _: {"group_id": G, "member_id": "m", "group_instance_id": None, "generation_id": 1, **extra}


def configs(kind: int, name: str) -> Callable[[Topic], dict[str, Any]]:
    return lambda _: {
        "resources": [{"resource_type": kind, "resource_name": name, "configuration_keys": [], "configs": []}],
        "include_synonyms": False,
        "include_documentation": False,
        "validate_only": True,
    }


def places(**extra: Any) -> dict[str, Any]:
    """The one partition of the one topic."""
    return {"topics": [{"name": T, "partitions": [{"partition_index": 0, **extra}]}]}


def const(**fields: Any) -> Callable[[Topic], dict[str, Any]]:
    return lambda _: fields


def acl(suffix: str) -> dict[str, Any]:
    return {
        f"resource_type{suffix}": 2,
        f"resource_name{suffix}": "fish",
        f"pattern_type{suffix}": 3,
        "resource_pattern_type": 3,
        f"principal{suffix}": "User:eve",
        f"host{suffix}": "*",
        "operation": 3,
        "permission_type": 3,
    }


READ_GROUP = (READ, GROUP, G, NO_GROUP)
WRITE_ID = (WRITE, ID, X, NO_ID)
READ_TOPIC = (READ, TOPIC, T, NO_TOPIC)
OF_GROUP = needs((DESCRIBE, GROUP, G, NO_GROUP))
OFFSETS = needs((DESCRIBE, GROUP, G, NO_GROUP), (DESCRIBE, TOPIC, T, NO_TOPIC))

COMMIT = {"committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": None}
PRODUCER = {"producer_id": 1, "producer_epoch": 0}
IN_ID = {"transactional_id": X, **PRODUCER}
CREATED: dict[str, Any] = {
    "name": T, "num_partitions": 1, "replication_factor": -1, "assignments": [], "configs": []
}  # fmt: skip
JOIN = {
    "session_timeout": 10_000,
    "rebalance_timeout": 10_000,
    "protocol_type": "consumer",
    "protocols": [{"name": "range", "metadata": b""}],
    "reason": None,
}
BEAT = {
    "member_id": "bee",
    "member_epoch": 0,
    "instance_id": None,
    "rack_id": None,
    "rebalance_timeout": 1000,
    "subscribed_topic_names": [T],
    "subscribed_topic_regex": None,
    "server_assignor": None,
    "topic_partitions": [],
}
METADATA = {
    "topics": [{"name": T, "topic_id": None}],
    "allow_auto_topic_creation": True,
    "include_cluster_authorized_operations": False,
    "include_topic_authorized_operations": False,
}
SALTED = {"name": "eve", "mechanism": 1, "iterations": 4096, "salt": b"s" * 16, "salted_password": b"p" * 32}
AT_OFFSETS = {"name": T, "partition_indexes": [0]}
LATEST = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
OF_EPOCH = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}
MARKER = {**PRODUCER, "transaction_result": False, "topics": [AT_OFFSETS], "coordinator_epoch": 0}
OLD_ADD = {
    f"v3_and_below_{name}": value for name, value in {**IN_ID, "topics": [{"name": T, "partitions": [0]}]}.items()
}
ADDED = at("results_by_topic_v3_and_below", 0, "results_by_partition", 0, "partition_error_code")
NEW_ADD = {**IN_ID, "verify_only": True, "topics": [{"name": T, "partitions": [0]}]}

PROBES = [
    Probe(
        "produce",
        9,
        lambda it: produce_fields(it, batch_of(b"a")),
        at("responses", 0, "partition_responses", 0),
        topic(WRITE),
    ),
    Probe("fetch", 11, lambda it: fetch_fields((it, 0, 0)), at("responses", 0, "partitions", 0), topic(READ)),
    Probe(
        "list_offsets",
        6,
        const(replica_id=-1, isolation_level=0, topics=[{"name": T, "partitions": [LATEST]}]),
        in_topic,
        topic(DESCRIBE),
    ),
    Probe("metadata", 10, const(**METADATA), at("topics", 0), metadata),
    Probe(
        "offset_commit",
        8,
        member(generation_id_or_member_epoch=-1, **places(**COMMIT)),
        in_topic,
        needs(READ_GROUP, READ_TOPIC),
    ),
    Probe("offset_fetch", 7, const(group_id=G, topics=[AT_OFFSETS], require_stable=False), in_topic, OFFSETS),
    Probe("offset_fetch", 1, const(group_id=G, topics=[AT_OFFSETS]), in_topic, OFFSETS),
    Probe(
        "offset_fetch",
        9,
        const(
            groups=[{"group_id": G, "member_id": None, "member_epoch": -1, "topics": [AT_OFFSETS]}],
            require_stable=False,
        ),
        lambda it: in_topic(it.groups[0]),
        OFFSETS,
    ),
    Probe("find_coordinator", 3, const(key=G, key_type=0), whole, OF_GROUP),
    Probe(
        "find_coordinator",
        6,
        const(coordinator_keys=[X], key_type=1),
        at("coordinators", 0),
        needs((DESCRIBE, ID, X, NO_ID)),
    ),
    Probe("join_group", 9, member(**{**JOIN, "member_id": ""}), whole, needs(READ_GROUP)),
    Probe("heartbeat", 4, member(), whole, needs(READ_GROUP)),
    Probe(
        "leave_group",
        5,
        member(members=[{"member_id": "m", "group_instance_id": None, "reason": None}]),
        whole,
        needs(READ_GROUP),
    ),
    Probe(
        "sync_group",
        5,
        member(protocol_type="consumer", protocol_name="range", assignments=[]),
        whole,
        needs(READ_GROUP),
    ),
    Probe("describe_groups", 6, const(groups=[G], include_authorized_operations=False), at("groups", 0), OF_GROUP),
    Probe(
        "create_topics",
        7,
        const(topics=[CREATED], timeout=1000, validate_only=True),
        at("topics", 0),
        either(NO_TOPIC, (CREATE, TOPIC, T), (CREATE, *OF_CLUSTER)),
    ),
    Probe("delete_topics", 5, const(topic_names=[T], timeout=1000), at("responses", 0), topic(DELETE)),
    Probe("delete_records", 2, const(**places(offset=0), timeout=1000), in_topic, topic(DELETE)),
    Probe("init_producer_id", 4, const(**{**IN_ID, "producer_id": -1, "producer_epoch": -1, "transaction_timeout": 9}),
          whole, needs(WRITE_ID)),
    Probe(
        "offset_for_leader_epoch",
        4,
        const(replica_id=-1, topics=[{"topic": T, "partitions": [OF_EPOCH]}]),
        in_topic,
        topic(DESCRIBE),
    ),
    Probe("add_partitions_to_txn", 3, const(**OLD_ADD), ADDED, needs(WRITE_ID, (WRITE, TOPIC, T, NO_TOPIC))),
    Probe("add_partitions_to_txn", 5, const(transactions=[NEW_ADD]), whole, cluster(CLUSTER_ACTION)),
    Probe("add_offsets_to_txn", 4, const(**IN_ID, group_id=G), whole, needs(WRITE_ID, READ_GROUP)),
    Probe("end_txn", 5, const(**IN_ID, committed=True), whole, needs(WRITE_ID)),
    Probe(
        "write_txn_markers",
        1,
        const(markers=[MARKER]),
        lambda it: in_topic(it.markers[0]),
        either(NO_CLUSTER, (ALTER, *OF_CLUSTER), (CLUSTER_ACTION, *OF_CLUSTER)),
    ),
    Probe(
        "txn_offset_commit",
        5,
        member(**IN_ID, **places(**COMMIT)),
        in_topic,
        needs(WRITE_ID, READ_GROUP, READ_TOPIC),
    ),
    Probe("describe_acls", 3, const(**acl("_filter")), whole, cluster(DESCRIBE)),
    Probe("create_acls", 3, const(creations=[acl("")]), at("results", 0), cluster(ALTER)),
    Probe("delete_acls", 3, const(filters=[acl("_filter")]), at("filter_results", 0), cluster(ALTER)),
    Probe("describe_configs", 4, configs(2, T), at("results", 0), topic(DESCRIBE_CONFIGS)),
    Probe("describe_configs", 4, configs(32, G), at("results", 0), needs((DESCRIBE_CONFIGS, GROUP, G, NO_GROUP))),
    Probe("describe_configs", 4, configs(4, "1"), at("results", 0), cluster(DESCRIBE_CONFIGS)),
    Probe("describe_configs", 4, configs(8, "1"), at("results", 0), cluster(DESCRIBE_CONFIGS)),
    Probe("alter_configs", 2, configs(2, T), at("responses", 0), topic(ALTER_CONFIGS)),
    Probe("alter_configs", 2, configs(4, ""), at("responses", 0), cluster(ALTER_CONFIGS)),
    Probe("incremental_alter_configs", 1, configs(2, T), at("responses", 0), topic(ALTER_CONFIGS)),
    Probe("incremental_alter_configs", 1, configs(32, G), at("responses", 0),
          needs((ALTER_CONFIGS, GROUP, G, NO_GROUP))),
    Probe("incremental_alter_configs", 1, configs(4, "1"), at("responses", 0), cluster(ALTER_CONFIGS)),
    Probe("describe_log_dirs", 4, const(topics=None), whole, cluster(DESCRIBE)),
    Probe(
        "create_partitions",
        3,
        const(topics=[{"name": T, "count": 5, "assignments": None}], timeout=1000, validate_only=True),
        at("results", 0),
        topic(ALTER),
    ),
    Probe("delete_groups", 2, const(groups_names=[G]), at("results", 0), needs((DELETE, GROUP, G, NO_GROUP))),
    Probe(
        "elect_leaders",
        2,
        const(election_type=0, topic_partitions=[{"topic": T, "partitions": [0]}], timeout=1000),
        whole,
        cluster(ALTER),
    ),
    Probe("alter_partition_reassignments", 0, const(timeout=1000, **places(replicas=None)), whole, cluster(ALTER)),
    Probe("list_partition_reassignments", 0, const(timeout=1000, topics=None), whole, cluster(DESCRIBE)),
    Probe("offset_delete", 0, const(group_id=G, **places()), in_topic,
          needs((DELETE, GROUP, G, NO_GROUP), READ_TOPIC)),
    Probe("describe_client_quotas", 1, const(components=[], strict=False), whole, cluster(DESCRIBE_CONFIGS)),
    Probe(
        "alter_client_quotas",
        1,
        const(entries=[{"entity": [{"entity_type": "user", "entity_name": "eve"}], "ops": []}], validate_only=True),
        at("entries", 0),
        cluster(ALTER_CONFIGS),
    ),
    Probe("describe_user_scram_credentials", 0, const(users=[{"name": "ann"}]), whole, cluster(DESCRIBE)),
    Probe("alter_user_scram_credentials", 0, const(deletions=[{"name": "none", "mechanism": 1}], upsertions=[SALTED]),
          lambda it: max(each.error_code for each in it.results if each.user == "eve"), cluster(ALTER)),
    Probe("describe_quorum", 2, const(topics=[{"topic_name": T, "partitions": [{"partition_index": 0}]}]), whole,
          cluster(DESCRIBE)),
    Probe("describe_producers", 0, const(topics=[AT_OFFSETS]), in_topic, topic(READ)),
    Probe("describe_transactions", 0, const(transactional_ids=[UNUSED]), at("transaction_states", 0),
          needs((DESCRIBE, ID, UNUSED, NO_ID))),
    Probe("consumer_group_heartbeat", 1, const(group_id="bees", **BEAT), whole,
          needs((READ, GROUP, "bees", NO_GROUP), (DESCRIBE, TOPIC, T, NO_TOPIC))),
    Probe("consumer_group_describe", 1, const(group_ids=[G], include_authorized_operations=False), at("groups", 0),
          OF_GROUP),
    Probe("list_config_resources", 1, const(resource_types=[]), whole, cluster(DESCRIBE_CONFIGS)),
    Probe("describe_topic_partitions", 0, const(topics=[{"name": T}], response_partition_limit=9, cursor=None),
          at("topics", 0), topic(DESCRIBE)),
]  # fmt: skip

UNPROBED = {
    "api_versions",
    "sasl_handshake",
    "sasl_authenticate",
    "describe_cluster",
    "list_groups",
    "list_transactions",
}
"""Answered to everybody, or what they answer depends on rights: tested apart."""
