"""The HTTP door of a node that follows: what there is to know of this node, and the way to the leader for all else.

`/healthz`, `/readyz`, `/metrics`, `/openapi.json` and `/v1/cluster` are of this node. Every other request is answered
with 307 to the same path at the leader, which clients follow with the same method and body; or with 503 while no other
node leads.
"""

from __future__ import annotations

from urllib.parse import quote

from headrace.doors.http.api.handlers.cluster import leader_url
from headrace.doors.http.api.handlers.pages import PAGES
from headrace.doors.http.api.responses import json_response
from headrace.doors.http.api.routes import LOCAL
from headrace.doors.http.door import HttpDoor
from headrace.doors.http.server.messages import Headers, Request, Response

# What may stand in a path as it is.
SAFE = "/:@!$&'()*+,;=~"
RETRY_SECONDS = 1


class HttpFollowerDoor(HttpDoor):
    """HTTP in front of a standby."""

    async def _answer(self, request: Request) -> Response:
        if request.path in PAGES or request.path in LOCAL:
            return await super()._answer(request)
        url = leader_url(self._broker.membership, tls=self.settings.http_tls)
        if url is None:
            headers: Headers = (("Retry-After", str(RETRY_SECONDS)),)
            message = "this node follows, and no node that could be asked leads its group just now"
            return json_response({"error": "NotLeading", "message": message}, 503, headers)
        target = url + quote(request.path, safe=SAFE) + (f"?{request.query}" if request.query else "")
        message = f"this node follows: {url} leads"
        return json_response(
            {"error": "NotLeading", "message": message}, 307, (("Location", target), ("Headrace-Leader", url))
        )
