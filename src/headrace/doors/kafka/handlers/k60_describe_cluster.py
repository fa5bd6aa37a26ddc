"""DescribeCluster (60), versions 0 to 2: the nodes of the group that live. The one that leads is the controller. There
are no controller endpoints."""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from headrace.doors.kafka.call import Call
from headrace.doors.kafka.placement import endpoints, leader_of
from headrace.doors.kafka.rights import NOT_ASKED, cluster_operations

_BROKERS = 1
_CONTROLLERS = 2


async def handle(call: Call, request: Any) -> dict[str, Any]:
    wanted = getattr(request, "endpoint_type", _BROKERS)
    if wanted == _CONTROLLERS:
        return _refuse(
            ErrorCode.mismatched_endpoint_type,
            "brokers are controllers here: ask for brokers",
        )
    if wanted != _BROKERS:
        return _refuse(ErrorCode.unsupported_endpoint_type, f"there are no endpoints of type {wanted}: 1 means brokers")
    broker = call.broker
    operations = cluster_operations(call) if request.include_cluster_authorized_operations else NOT_ASKED
    return {
        "error_code": ErrorCode.none,
        "error_message": None,
        "endpoint_type": _BROKERS,
        "cluster_id": broker.cluster_id,
        "controller_id": leader_of(broker, call.listener),
        "brokers": [
            {"broker_id": each.node_id, "host": each.host, "port": each.port, "rack": each.rack, "is_fenced": False}
            for each in endpoints(broker, call.way)
        ],
        "cluster_authorized_operations": operations,
    }


def _refuse(code: ErrorCode, sentence: str) -> dict[str, Any]:
    return {
        "error_code": code,
        "error_message": sentence,
        "endpoint_type": _BROKERS,
        "cluster_id": "",
        "controller_id": -1,
        "brokers": (),
        "cluster_authorized_operations": NOT_ASKED,
    }
