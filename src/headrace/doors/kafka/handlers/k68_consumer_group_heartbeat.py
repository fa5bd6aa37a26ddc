"""ConsumerGroupHeartbeat (68), versions 0 and 1: the new consumer protocol is UNSUPPORTED_VERSION, as from a Kafka
whose `group.coordinator.rebalance.protocols` is `classic`.

It is advertised all the same, as there. librdkafka waits for ever, without a word, for a broker that knows the API;
told this, it tells its application. Others go on with the classic protocol.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from headrace.doors.kafka.call import Call

VERSIONS = (0, 1)


async def handle(call: Call, request: Any) -> dict[str, Any]:
    """Answer one request."""
    return {
        "error_code": ErrorCode.unsupported_version,
        "error_message": "the new consumer protocol is not served here: set group.protocol to classic",
    }
