"""IncrementalAlterConfigs (44), versions 0 to 1: set, delete, append to and subtract from settings of topics, groups
and brokers.

Append and subtract work on list settings, starting from the value in effect, the default too. All changes of a
resource are made together or not at all, and take effect at once. Settings of the broker that are fixed while it runs
are refused with a sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from enum import IntEnum
from functools import partial
from typing import Any

from kio.schema.errors import ErrorCode

from headrace.broker.setting_kinds import as_list
from headrace.doors.kafka.call import Call
from headrace.doors.kafka.changes import repeated
from headrace.doors.kafka.configs import alter, value_of
from headrace.doors.kafka.errors import KafkaError, controller_code
from headrace.errors import HeadraceError, InvalidTopicConfig


class Operation(IntEnum):
    """What to do with a setting, by Kafka's number."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


async def handle(call: Call, request: Any) -> dict[str, Any]:

    async def change(resource: Any) -> None:
        now = partial(value_of, call.broker, resource.resource_type)
        await alter(call, resource, lambda own: _apply(own, resource.configs, now), request.validate_only)

    return await respond(request.resources, change)


async def respond(resources: Any, change: Callable[[Any], Coroutine[Any, Any, None]]) -> dict[str, Any]:
    """Change one resource after the other; the reply."""
    duplicates = repeated((resource.resource_type, resource.resource_name) for resource in resources)
    responses = []
    for resource in resources:
        key = resource.resource_type, resource.resource_name
        code, sentence = ErrorCode.none, None
        try:
            if key in duplicates:
                raise KafkaError(ErrorCode.invalid_request, f"{key[1]!r} occurs more than once in the request")
            await change(resource)
        except (HeadraceError, OSError) as error:
            code, sentence = controller_code(error), str(error)
        responses.append(
            {"error_code": code, "error_message": sentence, "resource_type": key[0], "resource_name": key[1]}
        )
    return {"responses": responses}


def _apply(own: Mapping[str, str], changes: Any, value_now: Callable[[str], str | None]) -> Mapping[str, str]:
    """`value_now` is what counts for a list setting that is not among its `own`; None where it is no list."""
    result = dict(own)
    for change in changes:
        try:
            operation = Operation(change.config_operation)
        except ValueError:
            raise KafkaError(
                ErrorCode.invalid_request, f"there is no operation {change.config_operation} on settings"
            ) from None
        name = change.name
        if operation is Operation.DELETE:
            result.pop(name, None)
            continue
        if change.value is None:
            raise KafkaError(ErrorCode.invalid_request, f"{name} needs a value: delete it to return to the default")
        if operation is Operation.SET:
            result[name] = change.value
            continue
        inherited = value_now(name)
        if inherited is None:
            raise InvalidTopicConfig(f"{name} is not a list: {operation.name.lower()} does not apply, set it")
        now = as_list(result.get(name, inherited))
        given = as_list(change.value)
        if operation is Operation.APPEND:
            now += [element for element in given if element not in now]
        else:
            now = [element for element in now if element not in given]
        result[name] = ",".join(now)
    return result
