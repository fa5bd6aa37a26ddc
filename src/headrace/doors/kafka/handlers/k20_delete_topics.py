"""DeleteTopics (20), versions 1 to 6: by name, from version 6 also by id.

The topic is gone when the reply comes; its files follow. The broker's own topics cannot be deleted, which Kafka
allows and regrets.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from headrace.doors.kafka.call import Call
from headrace.doors.kafka.changes import Refused, repeated, within
from headrace.doors.kafka.errors import error_code
from headrace.errors import InvalidTopic, UnknownTopic

VERSIONS = (1, 6)


async def handle(call: Call, request: Any) -> dict[str, Any]:
    """Answer one request."""
    if call.version >= 6:
        asked = [(topic.name, topic.topic_id) for topic in request.topics]
    else:
        asked = [(name, None) for name in request.topic_names]
    duplicates = repeated(asked)
    unique = list(dict.fromkeys(asked))
    by_id = {call.broker.log.topics_by_id[key].name for _, key in unique if key in call.broker.log.topics_by_id}

    def deleting(name: str | None, topic_id: UUID | None) -> Callable[[], Coroutine[Any, Any, dict[str, Any]]]:
        return lambda: _delete(call, name, topic_id, (name, topic_id) in duplicates, by_id)

    outcomes = await within(request.timeout, [deleting(*each) for each in unique])
    return {"responses": [_result(each, outcome) for each, outcome in zip(unique, outcomes, strict=True)]}


async def _delete(
    call: Call, name: str | None, topic_id: UUID | None, duplicate: bool, by_id: set[str]
) -> dict[str, Any]:
    if name is not None and topic_id is not None:
        raise Refused(ErrorCode.invalid_request, "You may not specify both topic name and topic id.")
    if name is None and topic_id is None:
        raise Refused(ErrorCode.invalid_request, "Neither topic name nor id were specified.")
    if duplicate:
        raise Refused(ErrorCode.invalid_request, f"Duplicate topic {'name' if topic_id is None else 'id'}.")
    if name is not None and name in by_id:
        raise Refused(ErrorCode.invalid_request, "The provided topic name maps to an ID that was already supplied.")
    broker = call.broker
    topic = broker.topics.get(name) if name is not None else broker.log.topics_by_id.get(topic_id or UUID(int=0))
    if topic is None:
        if topic_id is not None:
            raise Refused(ErrorCode.unknown_topic_id, "This server does not host this topic ID.")
        raise UnknownTopic("This server does not host this topic-partition.")
    if broker.topics.is_internal(topic.name):
        raise InvalidTopic(f"'{topic.name}' is kept by the broker for itself and cannot be deleted")
    await broker.topics.delete(topic.name, only=topic)
    return {"name": topic.name, "topic_id": topic.id, "error_code": ErrorCode.none, "error_message": None}


def _result(asked: tuple[str | None, UUID | None], outcome: dict[str, Any] | BaseException) -> dict[str, Any]:
    if isinstance(outcome, BaseException):
        name, topic_id = asked
        return {"name": name, "topic_id": topic_id, "error_code": error_code(outcome), "error_message": str(outcome)}
    return outcome
