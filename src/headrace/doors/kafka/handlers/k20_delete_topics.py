"""DeleteTopics (20), versions 1 to 6: by name, from version 6 also by id.

The topic is gone when the reply comes; its files follow. The broker's own topics cannot be deleted, which Kafka
allows and regrets.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from headrace.broker.security import Operation, Resource
from headrace.doors.kafka.call import Call
from headrace.doors.kafka.changes import repeated, within
from headrace.doors.kafka.errors import KafkaError, controller_code
from headrace.errors import UnknownTopic

# The first version whose clients know THROTTLING_QUOTA_EXCEEDED.
TOLD_FROM = 5


async def handle(call: Call, request: Any) -> dict[str, Any]:
    if call.version >= 6:
        asked = [(topic.name, topic.topic_id) for topic in request.topics]
    else:
        asked = [(name, None) for name in request.topic_names]
    duplicates = repeated(_resolve(call, *each) for each in asked)
    unique = list({_resolve(call, *each): each for each in asked}.values())

    def deleting(name: str | None, topic_id: UUID | None) -> Callable[[], Coroutine[Any, Any, dict[str, Any]]]:
        return lambda: _delete(call, name, topic_id, _resolve(call, name, topic_id) in duplicates)

    outcomes = await within(request.timeout, [deleting(*each) for each in unique])
    return {"responses": [_result(each, outcome) for each, outcome in zip(unique, outcomes, strict=True)]}


def _resolve(call: Call, name: str | None, topic_id: UUID | None) -> Any:
    """What a topic of a request is known by: the topic itself where there is one, however it was called."""
    if name is None and topic_id is not None:
        topic = call.broker.log.topics.by_id.get(topic_id)
        return topic_id if topic is None else topic.name
    return name if topic_id is None else (name, topic_id)


async def _delete(call: Call, name: str | None, topic_id: UUID | None, duplicate: bool) -> dict[str, Any]:
    if name is not None and topic_id is not None:
        raise KafkaError(ErrorCode.invalid_request, "give the name or the id of a topic, not both")
    if name is None and topic_id is None:
        raise KafkaError(ErrorCode.invalid_request, "give the name or the id of the topic")
    if duplicate:
        raise KafkaError(ErrorCode.invalid_request, "the topic occurs more than once in the request")
    broker = call.broker
    topic = broker.topics.get(name) if name is not None else broker.log.topics.by_id.get(topic_id or UUID(int=0))
    if name is not None:
        call.check(Operation.DELETE, Resource.TOPIC, name)
    elif topic is not None and not call.allows(Operation.DELETE, Resource.TOPIC, topic.name):
        # The client may not know its name.
        raise KafkaError(
            ErrorCode.topic_authorization_failed, f"not authorized to delete the topic with the id {topic_id}"
        )
    if topic is None:
        if topic_id is not None:
            raise KafkaError(ErrorCode.unknown_topic_id, f"there is no topic with the id {topic_id}")
        raise UnknownTopic(f"there is no topic '{name}'")
    call.mutate(len(topic.partitions), TOLD_FROM)
    await broker.topics.delete(topic.name, only=topic, session=call.session)
    return {"name": topic.name, "topic_id": topic.id, "error_code": ErrorCode.none, "error_message": None}


def _result(asked: tuple[str | None, UUID | None], outcome: dict[str, Any] | BaseException) -> dict[str, Any]:
    if isinstance(outcome, BaseException):
        name, topic_id = asked
        return {
            "name": name,
            "topic_id": topic_id,
            "error_code": controller_code(outcome),
            "error_message": str(outcome),
        }
    return outcome
