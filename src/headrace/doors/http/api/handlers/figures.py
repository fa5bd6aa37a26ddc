"""Figures over HTTP: everything at once, in parts and as what has changed; and what is wrong now."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from headrace.broker.broker import Broker
from headrace.broker.figures import KINDS
from headrace.broker.figures.changes import Key
from headrace.broker.figures.columns import APIS, DOORS, GROUPS, NODE, QUEUES, TOPICS
from headrace.broker.figures.overview import SEVERITIES, overview
from headrace.broker.metrics import LATENCY_BOUNDS
from headrace.broker.security import Operation as Right
from headrace.broker.security import Resource
from headrace.broker.security.rights import CLUSTER_NAME, queue_name
from headrace.doors.http.api.errors import bad_request
from headrace.doors.http.api.fields import Fields
from headrace.doors.http.api.operations import Operation, limit_query, text_query
from headrace.doors.http.api.responses import JSON, Answer, Names
from headrace.doors.http.api.rights import LISTED, on_cluster
from headrace.doors.http.api.schemas import anything, array, decimal, flag, integer, mapping, nullable, object_of, text
from headrace.doors.http.server.messages import Request, Response

ROWS_DEFAULT = 1_000
ROWS_MAX = 2_000
# Rows that become JSON in a turn of the loop.
STEP_ROWS = 128
RESOURCES = {TOPICS: Resource.TOPIC, QUEUES: Resource.QUEUE, GROUPS: Resource.GROUP}


ROW = array(anything())
FIGURES = object_of(
    {
        "version": text("Bring it as `since` to be told what changes from here on."),
        "full": flag("Discard what you have first: these are the first of all rows."),
        "more": flag("There are more: ask again at once."),
        "at_ms": integer("When the broker was looked at."),
        "latency_bounds": array(decimal(), "The upper bounds of `buckets`, in seconds; the last bucket has none."),
        "columns": mapping(array(text()), "What a row has, by kind: its names first."),
        "names": mapping(integer(), "How many of the first columns are names, by kind."),
        "rows": mapping(array(ROW), "By kind, as they are now."),
        "gone": mapping(array(array(text())), "By kind, the names of what is no more."),
    }
)
PROBLEM = object_of(
    {
        "kind": text(),
        "severity": text(choices=SEVERITIES),
        "message": text("What is wrong, and what to do."),
        "value": decimal(),
        "subject": mapping(text(), "What it is about: `topic`, `queue`, `group`, `door` or `transactional_id`."),
    }
)
OVERVIEW = object_of(
    {
        "at_ms": integer("When the broker was looked at."),
        "node": mapping(anything(), "Counters since the start, and what is so now."),
        "rates": mapping(nullable(decimal()), "A second, over about ten seconds; null before the second look."),
        "problems": array(PROBLEM, "The worst first."),
        "problems_total": integer(),
    }
)


@Operation(
    "GET",
    "/v1/figures",
    "Gives the figures of all topics, queues, groups, doors and the node, or what has changed of them.",
    rights=LISTED,
    query=(
        text_query("since", "An earlier answer's `version`; all rows without it."),
        text_query("kinds", f"Some of {','.join(KINDS)}."),
        limit_query(ROWS_DEFAULT, ROWS_MAX),
    ),
    answer=FIGURES,
    command="figures",
    doc="Counters start when the broker starts. What was not used since the start of the broker has no figures (null).",
)
async def get_figures(broker: Broker, request: Request, names: Names) -> Answer:
    fields = Fields.of_query(request)
    since = fields.text("since")
    given = fields.text("kinds")
    limit = fields.number("limit", ROWS_DEFAULT, 1, ROWS_MAX)
    fields.end()
    kinds = given.split(",") if given else list(KINDS)
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise bad_request(f"there is no kind {unknown[0]!r} of figures. Use {', '.join(KINDS)}.")
    figures = broker.figures
    await figures.renew()
    changed = figures.after(since, limit, kinds)
    head = {
        "version": figures.version_of(changed.place),
        "full": changed.full,
        "more": changed.more,
        "at_ms": figures.at_ms,
        "latency_bounds": list(LATENCY_BOUNDS),
        "columns": {kind: KINDS[kind].columns for kind in kinds},
        "names": {kind: len(KINDS[kind].names) for kind in kinds},
    }
    rows: dict[str, list[str]] = {}
    gone: dict[str, list[str]] = {}
    for first in range(0, len(changed.rows), STEP_ROWS):
        some = changed.rows[first : first + STEP_ROWS]
        visible = _visible(broker, request, [key for key, _ in some])
        for key, row in some:
            if key in visible:
                kind, *called = key
                into, what = (gone, called) if row is None else (rows, [*called, *row])
                into.setdefault(kind, []).append(json.dumps(what, ensure_ascii=False))
        await asyncio.sleep(0)
    text = f'{json.dumps(head)[:-1]}, "rows": {_object(rows)}, "gone": {_object(gone)}}}\n'
    return Response(text.encode("utf-8", "replace"), JSON)


def _object(parts: Mapping[str, list[str]]) -> str:
    """Lists by kind, as JSON."""
    return "{" + ", ".join(f'"{kind}": [{", ".join(each)}]' for kind, each in parts.items()) + "}"


def _visible(broker: Broker, request: Request, keys: list[Key]) -> set[Key]:
    """Of what rows are about, that which the client may describe."""
    security, session = broker.security, request.session
    found: set[Key] = set()
    if security.visible(session, Resource.CLUSTER, [CLUSTER_NAME]):
        found.update(key for key in keys if key[0] in (NODE, DOORS, APIS))
    for kind, resource in RESOURCES.items():
        of_kind = [key for key in keys if key[0] == kind]
        name = {key: queue_name(*key[1:]) if kind == QUEUES else key[1] for key in of_kind}
        shown = set(security.visible(session, resource, name.values()))
        found.update(key for key in of_kind if name[key] in shown)
    return found


@Operation(
    "GET",
    "/v1/overview",
    "Shows the broker in short: totals, rates, and what is wrong now.",
    rights=on_cluster(Right.DESCRIBE),
    answer=OVERVIEW,
    command="overview",
)
async def show_overview(broker: Broker, request: Request, names: Names) -> Answer:
    found = await overview(broker)
    shown: dict[str, Any] = asdict(found)
    return shown
