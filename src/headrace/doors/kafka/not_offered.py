"""Requests of APIs that Kafka has and Headrace does not offer: an error in the reply's own form.

A client that goes by ApiVersions does not ask. One that does learns from the error what a closed connection would not
tell it, and keeps its connection.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kio.schema.errors import ErrorCode

from headrace.doors.kafka import codec
from headrace.doors.kafka.registry import Api

Reply = dict[str, Any]

# By which brokers keep the state of share groups.
SHARE_STATE = (
    "delete_share_group_state",
    "initialize_share_group_state",
    "read_share_group_state",
    "read_share_group_state_summary",
    "write_share_group_state",
)
# What Kafka answers where it does not offer them either. To all others the answer is UNSUPPORTED_VERSION.
_CODES: dict[str, ErrorCode] = {
    "create_delegation_token": ErrorCode.delegation_token_auth_disabled,
    "renew_delegation_token": ErrorCode.delegation_token_auth_disabled,
    "expire_delegation_token": ErrorCode.delegation_token_auth_disabled,
    "describe_delegation_token": ErrorCode.delegation_token_auth_disabled,
}


def _groups(request: Any, error: Reply) -> Reply:
    return {"groups": [{**error, "group_id": group_id} for group_id in request.group_ids]}


def _groups_with_topics(request: Any, error: Reply) -> Reply:
    return {"groups": [{**error, "group_id": group.group_id} for group in request.groups]}


def _log_dirs(request: Any, error: Reply) -> Reply:
    topics = [topic for folder in request.dirs for topic in folder.topics]
    return {
        "results": [
            {
                "topic_name": topic.name,
                "partitions": [{**error, "partition_index": index} for index in topic.partitions],
            }
            for topic in topics
        ]
    }


def _share_state(request: Any, error: Reply) -> Reply:
    return {
        "results": [
            {
                "topic_id": topic.topic_id,
                "partitions": [{**error, "partition": each.partition} for each in topic.partitions],
            }
            for topic in request.topics
        ]
    }


# Of replies whose errors stand with each thing that was asked about.
_EACH: dict[str, Callable[[Any, Reply], Reply]] = {
    "alter_replica_log_dirs": _log_dirs,
    "describe_share_group_offsets": _groups_with_topics,
    "share_group_describe": _groups,
    **dict.fromkeys(SHARE_STATE, _share_state),
    "streams_group_describe": _groups,
}


def refuse(api: Api, version: int, frame: bytes) -> Reply:
    """The reply to a request. Raises Malformed."""
    code = _CODES.get(api.name, ErrorCode.unsupported_version)
    error = {"error_code": code, "error_message": f"{api.name} is not offered: see ApiVersions for what is"}
    each = _EACH.get(api.name)
    return error if each is None else each(codec.decode_request(api.key, version, frame, 0), error)
