"""AlterConfigs (33), versions 0 to 2: replace all that is set for a topic, a group or a broker by what is given.

Takes effect at once. Settings of the broker that are fixed while it runs are refused with a sentence.
IncrementalAlterConfigs (44) is what a client should use: this one drops what it does not name.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from headrace.doors.kafka.call import Call
from headrace.doors.kafka.configs import alter
from headrace.doors.kafka.errors import KafkaError
from headrace.doors.kafka.handlers.k44_incremental_alter_configs import respond


async def handle(call: Call, request: Any) -> dict[str, Any]:
    return await respond(request.resources, lambda resource: _replace(call, resource, request.validate_only))


async def _replace(call: Call, resource: Any, validate_only: bool) -> None:
    given: dict[str, str] = {}
    for config in resource.configs:
        if config.value is None:
            raise KafkaError(
                ErrorCode.invalid_request, f"{config.name} needs a value: leave it out to return to the default"
            )
        given[config.name] = config.value
    await alter(call, resource, lambda own: given, validate_only)
