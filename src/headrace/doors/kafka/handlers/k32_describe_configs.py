"""DescribeConfigs (32), versions 1 to 4: the settings of topics, of groups, of this broker, and of its logger.

Null keys, and an empty list of them, mean all; unknown keys are left out. The broker's settings are those of Kafka's
that Headrace has. The empty broker name asks for those that were changed at run time for all brokers. A group need not
exist. Client metrics have no settings here.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from headrace.broker.security import Operation
from headrace.broker.topics import check_name
from headrace.doors.kafka.call import Call
from headrace.doors.kafka.configs import (
    Resource,
    all_brokers_entries,
    broker_entries,
    check_node,
    check_right,
    group_entries,
    logger_entries,
    topic_entries,
)
from headrace.doors.kafka.errors import KafkaError, error_code
from headrace.errors import HeadraceError


async def handle(call: Call, request: Any) -> dict[str, Any]:
    documented = getattr(request, "include_documentation", False)
    results = []
    for resource in request.resources:
        result = {"resource_type": resource.resource_type, "resource_name": resource.resource_name}
        try:
            entries = _entries(call, resource)
        except HeadraceError as error:
            results.append({**result, "error_code": error_code(error), "error_message": str(error), "configs": ()})
            continue
        for entry in entries:
            if not request.include_synonyms:
                entry["synonyms"] = ()
            if not documented:
                entry["documentation"] = None
        results.append({**result, "error_code": ErrorCode.none, "error_message": "", "configs": entries})
    return {"results": results}


def _entries(call: Call, resource: Any) -> list[dict[str, Any]]:
    broker, name = call.broker, resource.resource_name
    check_right(call, Operation.DESCRIBE_CONFIGS, resource)
    keys = resource.configuration_keys or None
    if resource.resource_type == Resource.TOPIC:
        check_name(name)
        return topic_entries(broker, broker.topics.existing(name).config, keys)
    if resource.resource_type == Resource.GROUP:
        if not name:
            raise KafkaError(ErrorCode.invalid_request, "a group's name must not be empty")
        return group_entries(broker.dynamic.of_group(name), broker.config, keys)
    if resource.resource_type == Resource.BROKER:
        if not name:
            return all_brokers_entries(broker, keys)
        check_node(name, broker.node_id, "itself, or by the empty string about all")
        return broker_entries(call.context, call.way, keys)
    if resource.resource_type == Resource.BROKER_LOGGER:
        if not name:
            raise KafkaError(ErrorCode.invalid_request, "name the broker whose logger you mean, by its number")
        check_node(name, broker.node_id, "itself")
        return logger_entries(keys)
    raise KafkaError(
        ErrorCode.invalid_request,
        f"resources of type {resource.resource_type} have no settings here: topics, groups, brokers and loggers have",
    )
