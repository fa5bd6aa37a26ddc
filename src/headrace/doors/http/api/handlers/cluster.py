"""Which broker this is: clients that reach it through several doors make sure that all of them are of one broker."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.broker.broker import Broker
from headrace.doors.http.api.answers import Fields, found
from headrace.doors.http.server.messages import Request, Response
from headrace.version import VERSION


async def shown(broker: Broker, request: Request, names: Mapping[str, str]) -> Response:
    """GET /v1/cluster"""
    Fields(request.parameters()).end()
    return found({"cluster_id": broker.cluster_id, "node_id": broker.node_id, "version": VERSION})
