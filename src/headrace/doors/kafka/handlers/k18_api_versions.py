"""ApiVersions, 0 to 4: which APIs the broker answers, in which versions.

A client of a newer version is answered in version 0 with UNSUPPORTED_VERSION and the whole list, from which it picks
the version to ask again with. The software name and version of the client are checked as Kafka checks them, from
version 3 on. Left out: features. None is finalized, so clients keep to the protocols that need none.
"""

from __future__ import annotations

import re
from typing import Any

from kio.schema.errors import ErrorCode

from headrace.doors.kafka.call import Call
from headrace.doors.kafka.registry import ADVERTISED_OLDEST, APIS

VERSIONS = (0, 4)

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?\Z")


async def handle(call: Call, request: Any) -> dict[str, Any]:
    if call.version >= 3 and not (
        _SOFTWARE.match(request.client_software_name) and _SOFTWARE.match(request.client_software_version)
    ):
        return {"error_code": ErrorCode.invalid_request}
    return {"error_code": ErrorCode.none, "api_keys": api_keys()}


def unsupported(call: Call) -> dict[str, Any]:
    """The answer to a version that is not there."""
    return {"error_code": ErrorCode.unsupported_version, "api_keys": api_keys()}


def api_keys() -> list[dict[str, int]]:
    """Every API with its versions."""
    return [
        {"api_key": api.key, "min_version": ADVERTISED_OLDEST.get(api.key, api.oldest), "max_version": api.newest}
        for api in APIS.values()
    ]
