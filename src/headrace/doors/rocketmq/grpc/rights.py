"""What each method of RocketMQ's gRPC service asks for. A name in braces is a field of the request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from headrace.broker.security import Operation, Resource
from headrace.broker.security.rights import Declaration, Inside, Open, Requires
from headrace.doors.rocketmq.gate import topic_resource
from headrace.doors.rocketmq.grpc.protocol import Proto
from headrace.doors.rocketmq.grpc.resources import full_name

READ, WRITE, DESCRIBE = Operation.READ, Operation.WRITE, Operation.DESCRIBE


def _topic(operation: Operation, field: str = "topic") -> Requires:
    return Requires(operation, Resource.TOPIC, f"{{{field}}}")


GROUP = Requires(READ, Resource.GROUP, "{group}")
CONSUME = (_topic(READ), GROUP)
METHODS: Mapping[str, Declaration] = {
    "QueryRoute": (_topic(DESCRIBE),),
    "QueryAssignment": CONSUME,
    "SendMessage": (_topic(WRITE, "messages.topic"),),
    "RecallMessage": (_topic(WRITE),),
    "EndTransaction": (_topic(WRITE),),
    "ReceiveMessage": (_topic(READ, "message_queue.topic"), GROUP),
    "AckMessage": CONSUME,
    "ChangeInvisibleDuration": CONSUME,
    "ForwardMessageToDeadLetterQueue": CONSUME,
    "Heartbeat": Inside("READ group of a consumer; the settings that it has told are asked for"),
    "NotifyClientTermination": Open("a client leaves the groups that it is in"),
    "Telemetry": Inside("WRITE of each topic that a producer names, READ group and topics of a consumer"),
}


def rights_of(method: str, request: Proto) -> Iterator[tuple[Operation, Resource, str]]:
    """What a request asks for."""
    declaration = METHODS[method]
    for each in declaration if isinstance(declaration, tuple) else ():
        for name in sorted(set(_names(request, each.by[1:-1].split(".")))):
            yield right(each.operation, each.resource, name)


def right(operation: Operation, resource: Resource, name: str) -> tuple[Operation, Resource, str]:
    """A right by RocketMQ's name. A retry topic belongs to its group."""
    if resource is not Resource.TOPIC:
        return operation, resource, name
    kind, resource_name = topic_resource(name)
    return (READ if kind is Resource.GROUP else operation), kind, resource_name


def settings_rights(settings: Any) -> Iterator[tuple[Operation, Resource, str]]:
    """What a client that tells its settings asks for: a producer is shown the messages of its topics that it has to
    decide about, and a consumer joins its group."""
    kind = settings.WhichOneof("pub_sub")
    if kind == "publishing":
        for each in settings.publishing.topics:
            yield right(WRITE, Resource.TOPIC, full_name(each))
    elif kind == "subscription":
        yield READ, Resource.GROUP, full_name(settings.subscription.group)
        for each in settings.subscription.subscriptions:
            yield right(READ, Resource.TOPIC, full_name(each.topic))


def _names(value: Any, path: list[str]) -> Iterator[str]:
    """The names at the end of a path of fields, of each element of a list on it."""
    if not path:
        yield full_name(value)
        return
    found = getattr(value, path[0])
    for each in found if path[0] == "messages" else (found,):
        yield from _names(each, path[1:])
