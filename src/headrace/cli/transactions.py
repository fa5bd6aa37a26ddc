"""`headrace transaction`: list, describe and abort transactions, and find hanging ones."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Annotated

import typer

from headrace.cli.connect import connects
from headrace.cli.durations import HELP, format_age, format_duration, parse_duration
from headrace.cli.offsets import partitions_of
from headrace.cli.options import Json
from headrace.cli.output import print_json, show
from headrace.client import Client
from headrace.client.cluster import Partition
from headrace.client.transactions import OPEN_STATES, ActiveProducer
from headrace.errors import HeadraceError

app = typer.Typer(help="Shows and aborts transactions of Kafka's producers.", no_args_is_help=True)

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
    """Lists the transactional ids."""
    age = -1 if older_than is None else parse_duration(older_than)
    wanted = states or (() if older_than is None else OPEN_STATES)
    rows = [asdict(each) for each in await client.transactions.list_all(states=wanted, longer_than_ms=age)]
    show(rows, as_json, {"transactional id": "transactional_id", "state": "state", "producer": "producer_id"})


@app.command()
@connects
async def describe(client: Client, name: Id, as_json: Json = False) -> None:
    """Shows a transactional id, and the partitions of its open transaction."""
    found = await client.transactions.describe(name)
    partitions = [{"topic": topic, "partition": partition} for topic, partition in sorted(found.partitions)]
    if as_json:
        print_json({**asdict(found), "partitions": partitions})
        return
    print(
        f"transactional id {name}, {found.state}, producer {found.producer_id} in epoch {found.epoch}, "
        f"timeout {format_duration(found.timeout_ms)}"
    )
    if found.state in OPEN_STATES:
        print(f"open for {format_age(found.started)}")
    if partitions:
        show(partitions, False, ("topic", "partition"))


@app.command()
@connects
async def abort(
    client: Client,
    name: Annotated[str | None, typer.Argument(metavar="[TRANSACTIONAL_ID]")] = None,
    topic: Annotated[str | None, typer.Option(help="With --partition and --offset: a hanging transaction.")] = None,
    partition: Annotated[
        int | None, typer.Option(min=0, help="The partition that the hanging transaction blocks.")
    ] = None,
    offset: Annotated[int | None, typer.Option(min=0, help="Its first offset there, as `hanging` shows it.")] = None,
) -> None:
    """Aborts the open transaction of a transactional id and fences its producer; or a hanging one in a partition."""
    place = [each for each in (topic, partition, offset) if each is not None]
    if (name is None) == (not place) or len(place) not in (0, 3):
        raise HeadraceError("give a transactional id, or --topic, --partition and --offset of a hanging transaction")
    if name is not None:
        await client.transactions.abort(name)
        return
    assert topic is not None
    assert partition is not None
    producers = await client.transactions.producers(await partitions_of(client, topic, partition))
    found = [each for each in producers if each.first_offset == offset]
    if not found:
        begun = sorted(each.first_offset for each in producers if each.first_offset >= 0)
        there = f"open ones begin at {', '.join(map(str, begun))}" if begun else "none is open there"
        raise HeadraceError(f"no transaction begins at offset {offset} of {topic}-{partition}: {there}")
    await client.transactions.abort_hanging(found[0])


@app.command()
@connects
async def hanging(
    client: Client,
    topics: Topics = [],  # noqa: B006 - typer copies it
    older_than: Annotated[
        str, typer.Option(metavar="DURATION", help=f"Only transactions that wrote nothing for this long: {HELP}.")
    ] = "15m",
    as_json: Json = False,
) -> None:
    """Lists open transactions that no coordinator knows. They block committed readers until they are aborted."""
    age = parse_duration(older_than)
    wanted: list[Partition] = []
    for name in dict.fromkeys(topics) or [each.name for each in await client.cluster.topics()]:
        wanted += await partitions_of(client, name, None)
    found = await client.transactions.find_hanging(wanted, age, time.time_ns() // 1_000_000)
    rows = [_row(each) for each in found]
    columns = {"topic": "topic", "partition": "partition", "offset": "offset", "producer": "producer_id"}
    show(rows, as_json, {**columns, "epoch": "epoch", "silent for": "silent"})


def _row(each: ActiveProducer) -> dict[str, object]:
    return {
        "topic": each.topic,
        "partition": each.partition,
        "offset": each.first_offset,
        "producer_id": each.producer_id,
        "epoch": each.epoch,
        "last_timestamp": each.last_timestamp,
        "silent": format_age(each.last_timestamp),
    }
