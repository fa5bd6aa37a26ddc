"""Which rights each API asks for: Kafka's own.

What a request asks for as a whole is checked before its handler, here: rights on the cluster, on the one group or the
one transactional id that it names. A request without them is answered with the error in its reply's own form
(`refusals.py`). Rights on each of several topics, groups or ids are checked where those are looked at.
"""

from __future__ import annotations

from asyncio import sleep
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from headrace.broker.security import Operation, Resource, Security, Session
from headrace.broker.security.rights import CLUSTER_NAME, Declaration, Inside, Open, Requires
from headrace.doors.kafka.errors import error_code
from headrace.doors.kafka.refusals import refuse
from headrace.errors import NotAuthorized

if TYPE_CHECKING:
    from headrace.doors.kafka.call import Call
    from headrace.doors.kafka.registry import Api

THE_CLUSTER = "the cluster"
THE_GROUP = "the group of the request"
THE_ID = "the transactional id of the request"
EACH_TOPIC = "each topic of the request"
NAMED_OR_LISTED = "each topic that is named; of all, those without are left out"
EACH_GROUP = "each group of the request"
EACH_ID = "each transactional id of the request"

# The client did not ask for the operations that it may do.
NOT_ASKED = -(1 << 31)
# Decisions that take about a millisecond.
NAMES_A_TURN = 200


def _topic(operation: Operation) -> Requires:
    return Requires(operation, Resource.TOPIC, EACH_TOPIC)


def _cluster(operation: Operation) -> Requires:
    return Requires(operation, Resource.CLUSTER, THE_CLUSTER)


_READ_GROUP = Requires(Operation.READ, Resource.GROUP, THE_GROUP)
_WRITE_ID = Requires(Operation.WRITE, Resource.TRANSACTIONAL_ID, THE_ID)
_BY_KIND = Inside("TOPIC, GROUP, or CLUSTER for brokers and loggers: each resource of the request")

DECLARATIONS: Mapping[str, Declaration] = {
    "produce": (
        _topic(Operation.WRITE),
        Requires(Operation.WRITE, Resource.TRANSACTIONAL_ID, "that of transactional batches"),
    ),
    "fetch": (_topic(Operation.READ),),
    "list_offsets": (_topic(Operation.DESCRIBE),),
    "metadata": (
        Requires(Operation.DESCRIBE, Resource.TOPIC, NAMED_OR_LISTED),
        Requires(Operation.CREATE, Resource.TOPIC, "each topic that is made by it, or CREATE on the cluster"),
    ),
    "offset_commit": (_READ_GROUP, _topic(Operation.READ)),
    "offset_fetch": (
        Requires(Operation.DESCRIBE, Resource.GROUP, EACH_GROUP),
        Requires(Operation.DESCRIBE, Resource.TOPIC, NAMED_OR_LISTED),
    ),
    "find_coordinator": (
        Requires(Operation.DESCRIBE, Resource.GROUP, EACH_GROUP),
        Requires(Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, EACH_ID),
    ),
    "join_group": (_READ_GROUP,),
    "heartbeat": (_READ_GROUP,),
    "leave_group": (_READ_GROUP,),
    "sync_group": (_READ_GROUP,),
    "describe_groups": (Requires(Operation.DESCRIBE, Resource.GROUP, EACH_GROUP),),
    "list_groups": Inside("DESCRIBE on CLUSTER, or groups without DESCRIBE on GROUP are left out"),
    "sasl_handshake": Open("clients authenticate by it"),
    "api_versions": Open("clients learn by it how to authenticate"),
    "sasl_authenticate": Open("clients authenticate by it"),
    "create_topics": Inside(
        "CREATE on CLUSTER, or on each TOPIC; DESCRIBE_CONFIGS on TOPIC for its settings in the reply"
    ),
    "delete_topics": (_topic(Operation.DELETE),),
    "delete_records": (_topic(Operation.DELETE),),
    "init_producer_id": Inside(
        "WRITE on TRANSACTIONAL_ID; without such an id IDEMPOTENT_WRITE on CLUSTER, or WRITE on any TOPIC"
    ),
    "offset_for_leader_epoch": (_topic(Operation.DESCRIBE),),
    "add_partitions_to_txn": Inside(
        "WRITE on TRANSACTIONAL_ID and on each TOPIC; from version 4 on CLUSTER_ACTION on CLUSTER"
    ),
    "add_offsets_to_txn": (_WRITE_ID, _READ_GROUP),
    "end_txn": (_WRITE_ID,),
    "write_txn_markers": Inside("ALTER or CLUSTER_ACTION on CLUSTER"),
    "txn_offset_commit": (_WRITE_ID, _READ_GROUP, _topic(Operation.READ)),
    "describe_acls": (_cluster(Operation.DESCRIBE),),
    "create_acls": (_cluster(Operation.ALTER),),
    "delete_acls": (_cluster(Operation.ALTER),),
    "describe_configs": _BY_KIND,
    "alter_configs": _BY_KIND,
    "describe_log_dirs": (_cluster(Operation.DESCRIBE),),
    "create_partitions": (_topic(Operation.ALTER),),
    "delete_groups": (Requires(Operation.DELETE, Resource.GROUP, EACH_GROUP),),
    "elect_leaders": (_cluster(Operation.ALTER),),
    "incremental_alter_configs": _BY_KIND,
    "alter_partition_reassignments": (_cluster(Operation.ALTER),),
    "list_partition_reassignments": (_cluster(Operation.DESCRIBE),),
    "offset_delete": (Requires(Operation.DELETE, Resource.GROUP, THE_GROUP), _topic(Operation.READ)),
    "describe_client_quotas": (_cluster(Operation.DESCRIBE_CONFIGS),),
    "alter_client_quotas": (
        Requires(Operation.ALTER_CONFIGS, Resource.CLUSTER, "the cluster, answered entity by entity"),
    ),
    "describe_user_scram_credentials": (_cluster(Operation.DESCRIBE),),
    "alter_user_scram_credentials": (_cluster(Operation.ALTER),),
    "describe_quorum": (_cluster(Operation.DESCRIBE),),
    "describe_cluster": Open("clients find the brokers by it"),
    "describe_producers": (_topic(Operation.READ),),
    "describe_transactions": (
        Requires(Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, EACH_ID),
        Requires(Operation.DESCRIBE, Resource.TOPIC, "each topic in it, others are left out"),
    ),
    "list_transactions": (
        Requires(Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, "each transactional id, others are left out"),
    ),
    "consumer_group_heartbeat": (
        _READ_GROUP,
        Requires(Operation.DESCRIBE, Resource.TOPIC, "each topic that is subscribed to by its name"),
    ),
    "consumer_group_describe": (
        Requires(Operation.DESCRIBE, Resource.GROUP, EACH_GROUP),
        Requires(Operation.DESCRIBE, Resource.TOPIC, "each topic of its members"),
    ),
    "list_config_resources": (_cluster(Operation.DESCRIBE_CONFIGS),),
    "describe_topic_partitions": (Requires(Operation.DESCRIBE, Resource.TOPIC, NAMED_OR_LISTED),),
}
"""By the API's name. Where there are several, each of them is asked for."""

# The field of a request that names what a right of the whole is about.
_FIELDS = {THE_GROUP: "group_id", THE_ID: "transactional_id"}
_WHOLE: Mapping[str, tuple[Requires, ...]] = {
    name: whole
    for name, declared in DECLARATIONS.items()
    if isinstance(declared, tuple)
    and (whole := tuple(each for each in declared if each.by in (THE_CLUSTER, THE_GROUP, THE_ID)))
}


def refuse_unauthorized(api: Api, call: Call, request: Any) -> dict[str, Any] | None:
    """The reply to a request that the client may not make as a whole; None where it may."""
    for each in _WHOLE.get(api.name, ()):
        name = CLUSTER_NAME if each.by == THE_CLUSTER else getattr(request, _FIELDS[each.by])
        try:
            call.check(each.operation, each.resource, name)
        except NotAuthorized as error:
            return refuse(api.key, call.version, request, error_code(error), str(error))
    return None


class Operations:
    """What a client may do to resources of one kind, where it asks for that."""

    def __init__(self, call: Call, resource: Resource, is_asked: bool = True) -> None:
        self._call = call
        self._resource = resource
        self._is_asked = is_asked

    def on(self, name: str) -> int:
        """As Kafka's bit set, or NOT_ASKED."""
        if not self._is_asked:
            return NOT_ASKED
        return bits(self._call.broker.security.operations(self._call.session, self._resource, name))


def cluster_operations(call: Call) -> int:
    """What a client may do to the cluster, which takes the right to describe it."""
    may_see = call.allows(Operation.DESCRIBE, Resource.CLUSTER, CLUSTER_NAME)
    return Operations(call, Resource.CLUSTER).on(CLUSTER_NAME) if may_see else 0


def bits(operations: Iterable[Operation]) -> int:
    """Operations as Kafka's bit set."""
    return sum(1 << each for each in operations)


async def visible(call: Call, resource: Resource, names: Iterable[str]) -> list[str]:
    """Those of some names that the client may describe. Others get their turn: there may be tens of thousands."""
    names, found = list(names), []
    for start in range(0, len(names), NAMES_A_TURN):
        if start:
            await sleep(0)
        found += call.broker.security.visible(call.session, resource, names[start : start + NAMES_A_TURN])
    return found


def may_make_producers(security: Security, session: Session) -> None:
    """Raise NotAuthorized for a client that may not have a producer id without a transactional id."""
    may = Operation.IDEMPOTENT_WRITE, Resource.CLUSTER, CLUSTER_NAME
    if not security.would_allow(session, *may) and not security.allows_some(session, Operation.WRITE, Resource.TOPIC):
        security.check(session, *may)


def rights_table() -> str:
    """The table of docs/kafka.md."""
    from headrace.doors.kafka.registry import APIS

    lines = ["| API | right | on |", "| --- | --- | --- |"]
    for api in APIS.values():
        name = "".join(word.capitalize() for word in api.name.split("_"))
        declared = DECLARATIONS[api.name]
        if isinstance(declared, Open):
            lines.append(f"| {name} | none | {declared.why} |")
        elif isinstance(declared, Inside):
            lines.append(f"| {name} | one of several | {declared.where} |")
        else:
            for each in declared:
                kind = "" if each.by == THE_CLUSTER else f"{each.resource.name}: "
                lines.append(f"| {name} | {each.operation.name} | {kind}{each.by} |")
                name = ""
    return "\n".join(lines) + "\n"
