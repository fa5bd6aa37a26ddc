"""Connections over HTTP: who is connected through which door, and how to cut one off."""

from __future__ import annotations

import asyncio
from typing import Any

from headrace.broker.broker import Broker
from headrace.broker.clients import Client
from headrace.broker.security import Operation as Right
from headrace.broker.security import Resource
from headrace.broker.security.rights import CLUSTER_NAME
from headrace.doors.http.api.fields import Fields
from headrace.doors.http.api.listing import listing_answer, listing_of, listing_query, page_of
from headrace.doors.http.api.operations import Operation, Refusal, text_query
from headrace.doors.http.api.responses import Answer, Names, Page
from headrace.doors.http.api.rights import on_cluster
from headrace.doors.http.api.schemas import Named, flag, integer, object_of, text
from headrace.doors.http.server.messages import HttpError, Request

SORTS = ("id", "door", "address", "user", "client_id", "age_ms")


CLIENT = Named(
    "Client",
    object_of(
        {
            "id": integer("Another one for each connection since the start."),
            "door": text(),
            "address": text("HOST:PORT."),
            "user": text("As whom it is authenticated; empty: nobody."),
            "client_id": text("As it calls itself; of an HTTP client, its software."),
            "tls": flag(),
            "age_ms": integer("For how long it is connected."),
        }
    ),
)


@Operation(
    "GET",
    "/v1/clients",
    "Lists connections: searched by address, user and client id, sorted, and in pages. Those of gRPC are not listed.",
    rights=on_cluster(Right.DESCRIBE),
    query=(*listing_query(SORTS), text_query("door", "Only those of this door.")),
    answer=listing_answer("clients", CLIENT),
    command="client list",
)
async def list_clients(broker: Broker, request: Request, names: Names) -> Answer:
    fields = Fields.of_query(request)
    listing = listing_of(fields, SORTS)
    door = fields.text("door")
    fields.end()
    found = await page_of(
        broker.clients,
        listing,
        _words,
        lambda client: _describe(client)[listing.sort],
        is_wanted=lambda client: door in ("", client.door),
    )
    page = await Page().fill(_describe(client) for client in found.items)
    return page.response("clients", {"total": found.total, "offset": listing.offset})


def _words(client: Client) -> str:
    session = client.connection.session
    return f"{client.connection.name} {session.user} {session.client_id}"


def _describe(client: Client) -> dict[str, Any]:
    connection = client.connection
    return {
        "id": client.id,
        "door": client.door,
        "address": connection.name,
        "user": connection.session.user,
        "client_id": connection.session.client_id,
        "tls": connection.encrypted,
        "age_ms": round((asyncio.get_running_loop().time() - client.since) * 1000),
    }


@Operation(
    "DELETE",
    "/v1/clients/{id}",
    "Closes a connection at once. Most clients connect again by themselves.",
    rights=on_cluster(Right.ALTER),
    answer=object_of({"id": integer(), "killed": flag()}),
    errors=(Refusal(404, "UnknownClient"),),
    command="client kill ID",
)
async def kill_client(broker: Broker, request: Request, names: Names) -> Answer:
    id = names["id"]
    client = broker.clients.find(int(id)) if id.isdecimal() and len(id) < 19 else None
    if client is None:
        raise HttpError(404, "UnknownClient", f"there is no connection {id!r}: it has gone")
    broker.audit.record(
        request.session, "client.kill", Resource.CLUSTER, CLUSTER_NAME, detail=f"{client.door} {client.connection.name}"
    )
    client.connection.abort()
    return {"id": client.id, "killed": True}
