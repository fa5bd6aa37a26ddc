"""Kafka's transactions over HTTP: which there are, which hang, and an end for those."""

from __future__ import annotations

from typing import Any

from headrace.broker.broker import Broker
from headrace.broker.security import Operation as Right
from headrace.broker.security import Resource
from headrace.broker.security.rights import Requires
from headrace.broker.transactions.transaction import Status, Transaction
from headrace.doors.http.api.fields import Fields
from headrace.doors.http.api.listing import Visible, listing_answer, listing_of, listing_query, page_of
from headrace.doors.http.api.operations import Operation, text_query
from headrace.doors.http.api.responses import Answer, Names, Page
from headrace.doors.http.api.rights import LISTED, on_cluster
from headrace.doors.http.api.schemas import Named, array, flag, integer, nullable, object_of, text
from headrace.doors.http.server.messages import Request
from headrace.errors import PartitionOffline, UnknownTransactionalId

SORTS = ("transactional_id", "state", "age_ms")


TRANSACTION = Named(
    "Transaction",
    object_of(
        {
            "transactional_id": text(),
            "state": text("By Kafka's name."),
            "producer_id": integer(),
            "epoch": integer(),
            "started_ms": nullable(integer("Of the last one.")),
            "age_ms": nullable(integer("Of the one that is open.")),
            "timeout_ms": integer(),
            "partitions": array(object_of({"topic": text(), "partition": integer()}), "Of the one that is open."),
            "hanging": flag("It is open for longer than its timeout."),
        }
    ),
)


@Operation(
    "GET",
    "/v1/transactions",
    "Lists transactional ids: searched, sorted, and in pages.",
    rights=LISTED,
    query=(*listing_query(SORTS), text_query("state", "Only those in this state, as in `Ongoing`.")),
    answer=listing_answer("transactions", TRANSACTION),
    errors=(PartitionOffline,),
    command="transaction list",
)
async def list_transactions(broker: Broker, request: Request, names: Names) -> Answer:
    fields = Fields.of_query(request)
    listing = listing_of(fields, SORTS)
    state = fields.text("state")
    fields.end()
    now = broker.runtime.clock.now_ms()
    every = await broker.transactions.list()
    found = await page_of(
        every,
        listing,
        lambda each: each[0],
        lambda each: _value(*each, listing.sort, now),
        Visible(broker.security, request.session, Resource.TRANSACTIONAL_ID),
        lambda each: state in ("", each[1].status.title),
    )
    page = await Page().fill(_describe(name, each, now) for name, each in found.items)
    return page.response("transactions", {"total": found.total, "offset": listing.offset})


def _value(name: str, each: Transaction, sort: str, now_ms: int) -> object:
    if sort == "age_ms":
        return now_ms - each.started_ms if each.status is Status.ONGOING else None
    return name if sort == "transactional_id" else each.status.title


def _describe(name: str, each: Transaction, now_ms: int) -> dict[str, Any]:
    is_open = each.status is Status.ONGOING
    age = now_ms - each.started_ms if is_open else None
    return {
        "transactional_id": name,
        "state": each.status.title,
        "producer_id": each.producer_id,
        "epoch": each.epoch,
        "started_ms": each.started_ms if each.is_used else None,
        "age_ms": age,
        "timeout_ms": each.timeout_ms,
        "partitions": [{"topic": topic, "partition": index} for topic, index in sorted(each.places)] if is_open else [],
        "hanging": age is not None and age > each.timeout_ms,
    }


@Operation(
    "POST",
    "/v1/transactions/{id}/abort",
    "Aborts the transaction of an id, if one is open, and fences its producer.",
    rights=(*on_cluster(Right.ALTER), Requires(Right.WRITE, Resource.TRANSACTIONAL_ID, "{id}")),
    body=object_of({}),
    answer=TRANSACTION,
    errors=(UnknownTransactionalId, PartitionOffline),
    command="transaction abort",
)
async def abort_transaction(broker: Broker, request: Request, names: Names) -> Answer:
    Fields.of_body(request.body).end()
    name = names["id"]
    await broker.transactions.abort(name)
    broker.audit.record(request.session, "transaction.abort", Resource.TRANSACTIONAL_ID, name)
    return _describe(name, await broker.transactions.describe(name), broker.runtime.clock.now_ms())
