"""ApiVersions (18), versions 0 to 4: which APIs the broker answers, in which versions.

A client of a newer version is answered in version 0 with UNSUPPORTED_VERSION and the whole list, from which it picks
the version to ask again with. The software name and version of the client are checked as Kafka checks them, from
version 3 on. Two features are finalized: `transaction.version` 2, by which producers know that the broker adds
partitions to their transactions and gives them a new epoch with each (KIP-890), and `group.version` 1, the consumer
protocol (KIP-848).
"""

from __future__ import annotations

import re
from typing import Any

from kio.schema.errors import ErrorCode

from headrace.doors.kafka.call import Call
from headrace.doors.kafka.registry import ADVERTISED_OLDEST, APIS

FINALIZED = {"group.version": 1, "transaction.version": 2}
FEATURES: dict[str, Any] = {
    "supported_features": [{"name": name, "min_version": 0, "max_version": level} for name, level in FINALIZED.items()],
    "finalized_features_epoch": 0,
    "finalized_features": [
        {"name": name, "min_version_level": level, "max_version_level": level} for name, level in FINALIZED.items()
    ],
}

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?\Z")


async def handle(call: Call, request: Any) -> dict[str, Any]:
    if call.version >= 3 and not (
        _SOFTWARE.match(request.client_software_name) and _SOFTWARE.match(request.client_software_version)
    ):
        return {"error_code": ErrorCode.invalid_request}
    return {"error_code": ErrorCode.none, "api_keys": api_keys(), **FEATURES}


def unsupported(call: Call) -> dict[str, Any]:
    """The answer to a version that is not there."""
    return {"error_code": ErrorCode.unsupported_version, "api_keys": api_keys()}


def api_keys() -> list[dict[str, int]]:
    """Every API with its versions."""
    return [
        {"api_key": api.key, "min_version": ADVERTISED_OLDEST.get(api.key, api.oldest), "max_version": api.newest}
        for api in APIS.values()
    ]
