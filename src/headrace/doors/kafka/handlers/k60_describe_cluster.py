"""DescribeCluster (60), versions 0 to 2: one broker, which is the controller too. There is no controller endpoint."""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from headrace.doors.kafka.call import Call
from headrace.doors.kafka.partitions import CLUSTER_OPERATIONS, NOT_ASKED

_BROKERS = 1
_CONTROLLERS = 2


async def handle(call: Call, request: Any) -> dict[str, Any]:
    wanted = getattr(request, "endpoint_type", _BROKERS)
    if wanted == _CONTROLLERS:
        return _refused(
            ErrorCode.mismatched_endpoint_type,
            "this is a broker, which is its own controller: ask it for brokers",
        )
    if wanted != _BROKERS:
        return _refused(
            ErrorCode.unsupported_endpoint_type, f"there are no endpoints of type {wanted}: 1 means brokers"
        )
    broker = call.broker
    operations = CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_ASKED
    return {
        "error_code": ErrorCode.none,
        "error_message": None,
        "endpoint_type": _BROKERS,
        "cluster_id": broker.cluster_id,
        "controller_id": broker.node_id,
        "brokers": [
            {
                "broker_id": broker.node_id,
                "host": call.listener_host,
                "port": call.listener_port,
                "rack": None,
                "is_fenced": False,
            }
        ],
        "cluster_authorized_operations": operations,
    }


def _refused(code: ErrorCode, sentence: str) -> dict[str, Any]:
    return {
        "error_code": code,
        "error_message": sentence,
        "endpoint_type": _BROKERS,
        "cluster_id": "",
        "controller_id": -1,
        "brokers": (),
        "cluster_authorized_operations": NOT_ASKED,
    }
