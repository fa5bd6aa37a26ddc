"""What is written from topics elsewhere, over HTTP: the tables of the lake and the archives, and how far they are."""

from __future__ import annotations

from typing import Any

from headrace.broker.broker import Broker
from headrace.broker.security import Resource
from headrace.doors.http.api.fields import Fields
from headrace.doors.http.api.listing import Visible, listing_answer, listing_of, listing_query, page_of
from headrace.doors.http.api.operations import Operation
from headrace.doors.http.api.responses import Answer, Names
from headrace.doors.http.api.rights import LISTED
from headrace.doors.http.api.schemas import Named, integer, nullable, object_of, text
from headrace.doors.http.server.messages import Request
from headrace.lake import group_of
from headrace.log.interface import Topic

ARCHIVE_GROUP = "retention.archive.group"
SORTS = ("topic", "lag", "stale_ms")
TARGET = Named(
    "PipelineTarget",
    object_of(
        {
            "topic": text(),
            "kind": text(choices=("table", "archive")),
            "place": text("Of a table: its kind and place, as the topic's setting `lake` has them."),
            "group": text("By whose positions the broker knows how far it is."),
            "lag": nullable(integer("Messages that the table does not have; null where it is not known yet.")),
            "stale_ms": nullable(integer("The table has all that is older than this.")),
        }
    ),
)


@Operation(
    "GET",
    "/v1/pipeline",
    "Lists the tables and archives that topics are written to, and how far they are.",
    rights=LISTED,
    query=listing_query(SORTS),
    answer=listing_answer("targets", TARGET),
    doc="As of the last look (`consumed_check_ms`). A job that does not run is one that falls behind.",
)
async def list_targets(broker: Broker, request: Request, names: Names) -> Answer:
    fields = Fields.of_query(request)
    listing = listing_of(fields, SORTS)
    fields.end()
    topics = [each for each in broker.log.topics.values() if each.config.get("lake") or each.config.get(ARCHIVE_GROUP)]
    found = await page_of(
        topics,
        listing,
        lambda topic: topic.name,
        lambda topic: _target(broker, topic)[listing.sort] or 0,
        Visible(broker.security, request.session, Resource.TOPIC),
    )
    return {
        "targets": [_target(broker, each) for each in found.items],
        "total": found.total,
        "offset": listing.offset,
    }


def _target(broker: Broker, topic: Topic) -> dict[str, Any]:
    place = topic.config.get("lake", "")
    progress = broker.archived.tables.get(topic.id) if place else None
    now = broker.runtime.clock.now_ms()
    return {
        "topic": topic.name,
        "kind": "table" if place else "archive",
        "place": place,
        "group": group_of(topic.name) if place else topic.config[ARCHIVE_GROUP],
        "lag": None if progress is None else progress.lag,
        "stale_ms": None if progress is None else max(now - progress.fresh_ms, 0),
    }
