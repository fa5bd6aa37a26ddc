"""`headrace transaction`: list, describe and abort transactions, and find those that hang."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import Annotated

import typer

from headrace.cli.connect import Json, connects, show
from headrace.cli.durations import HELP, about, parse_duration, spoken
from headrace.cli.places import partitions_of
from headrace.client import Client
from headrace.client.admin import Partition
from headrace.client.transactions import OPEN_STATES, ActiveProducer
from headrace.errors import HeadraceError

app = typer.Typer(help="Transactions of Kafka's producers.", no_args_is_help=True)

Id = Annotated[str, typer.Argument(metavar="TRANSACTIONAL_ID")]
Topics = Annotated[list[str], typer.Option("--topic", help="Only this topic; may be repeated.")]


@app.command("list")
@connects
async def list_transactions(
    client: Client,
    states: Annotated[
        list[str], typer.Option("--state", help="Only ids in this state, as in Ongoing; may be repeated.")
    ] = [],  # noqa: B006 - typer copies it
    older_than: Annotated[
        str | None, typer.Option(metavar="DURATION", help=f"Only transactions open for longer than this: {HELP}.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the transactional ids."""
    age = -1 if older_than is None else parse_duration(older_than)
    wanted = states or (() if older_than is None else OPEN_STATES)
    rows = [asdict(each) for each in await client.transactions.listing(states=wanted, longer_than_ms=age)]
    show(rows, as_json, {"transactional_id": "transactional id", "state": "state", "producer_id": "producer"})


@app.command()
@connects
async def describe(client: Client, name: Id, as_json: Json = False) -> None:
    """Show a transactional id, and what its open transaction has written to."""
    found = await client.transactions.describe(name)
    partitions = [{"topic": topic, "partition": partition} for topic, partition in sorted(found.partitions)]
    if as_json:
        print(json.dumps({**asdict(found), "partitions": partitions}, indent=2))
        return
    print(
        f"transactional id {name}, {found.state}, producer {found.producer_id} in epoch {found.epoch}, "
        f"timeout {spoken(found.timeout_ms)}"
    )
    if found.state in OPEN_STATES:
        print(f"open for {about(max(0, _now() - found.started))}")
    if partitions:
        show(partitions, False, {"topic": "topic", "partition": "partition"})


@app.command()
@connects
async def abort(
    client: Client,
    name: Annotated[str | None, typer.Argument(metavar="[TRANSACTIONAL_ID]")] = None,
    topic: Annotated[str | None, typer.Option(help="With --partition and --offset: one that hangs.")] = None,
    partition: Annotated[int | None, typer.Option(min=0, help="The partition that it holds up.")] = None,
    offset: Annotated[int | None, typer.Option(min=0, help="Where it begins there, as `hanging` says.")] = None,
) -> None:
    """Abort the open transaction of a transactional id and fence its producer; or one that hangs in a partition."""
    place = [each for each in (topic, partition, offset) if each is not None]
    if (name is None) == (not place) or len(place) not in (0, 3):
        raise HeadraceError("give a transactional id, or --topic, --partition and --offset of one that hangs")
    if name is not None:
        await client.transactions.abort(name)
        return
    assert topic is not None
    assert partition is not None
    producers = await client.transactions.producers(await partitions_of(client, topic, partition))
    found = [each for each in producers if each.first_offset == offset]
    if not found:
        begun = sorted(each.first_offset for each in producers if each.first_offset >= 0)
        there = f"those open there begin at {', '.join(map(str, begun))}" if begun else "none is open there"
        raise HeadraceError(f"no transaction begins at offset {offset} of {topic}-{partition}: {there}")
    await client.transactions.abort_hanging(found[0])


@app.command()
@connects
async def hanging(
    client: Client,
    topics: Topics = [],  # noqa: B006 - typer copies it
    older_than: Annotated[
        str, typer.Option(metavar="DURATION", help=f"Only those that wrote nothing for this long: {HELP}.")
    ] = "15m",
    as_json: Json = False,
) -> None:
    """Find open transactions that no coordinator knows of: committed readers wait for them until they are aborted."""
    age = parse_duration(older_than)
    wanted: list[Partition] = []
    for name in dict.fromkeys(topics) or [each.name for each in await client.cluster.topics()]:
        wanted += await partitions_of(client, name, None)
    now = _now()
    rows = [_row(each, now) for each in await client.transactions.hanging(wanted, age, now)]
    columns = {"topic": "topic", "partition": "partition", "offset": "offset", "producer_id": "producer"}
    show(rows, as_json, {**columns, "epoch": "epoch", "silent": "silent for"})


def _row(each: ActiveProducer, now: int) -> dict[str, object]:
    return {
        "topic": each.topic,
        "partition": each.partition,
        "offset": each.first_offset,
        "producer_id": each.producer_id,
        "epoch": each.epoch,
        "last_timestamp": each.last_timestamp,
        "silent": about(max(0, now - each.last_timestamp)),
    }


def _now() -> int:
    return time.time_ns() // 1_000_000
