"""`headrace consume`: a topic to standard output."""

from __future__ import annotations

import asyncio
import math
import sys
import time
from typing import Annotated

import typer

from headrace.cli.connect import connects
from headrace.cli.messages import Form, binary_output, printed
from headrace.cli.places import offsets_at, partitions_of, require_inactive
from headrace.cli.positions import HELP, Kind, Position, parse_position
from headrace.cli.progress import progress_bar
from headrace.client import EARLIEST, Admin, Client, ClientError, Consumer
from headrace.client.admin import Partition
from headrace.client.cluster import TopicState
from headrace.client.consumer import DamagedBatch
from headrace.errors import HeadraceError

COMMIT_SECONDS = 1.0
LAST_COMMIT_SECONDS = 3.0
GROWTH_SECONDS = 2.0


@connects
async def consume(
    client: Client,
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    start: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="POSITION", help=f"Where to begin: {HELP}. By default the group's offset, or earliest."
        ),
    ] = None,
    to: Annotated[
        str | None, typer.Option(metavar="POSITION", help="Where to end, itself left out; as --from.")
    ] = None,
    count: Annotated[int | None, typer.Option(min=1, help="End after so many messages.")] = None,
    follow: Annotated[bool, typer.Option(help="Wait for more at the end of the topic.")] = False,
    group: Annotated[str, typer.Option(help="Begin where this group stands, and commit what was printed.")] = "",
    form: Annotated[
        Form,
        typer.Option("--format", help="text: values in lines; json: everything, an object a line; raw: values only."),
    ] = Form.TEXT,
    key_separator: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Print keys in text, with this between key and value.")
    ] = None,
    partition: Annotated[int | None, typer.Option(min=0, help="Only this partition.")] = None,
    committed: Annotated[
        bool, typer.Option("--committed", help="Leave out what transactions have not committed.")
    ] = False,
) -> None:
    """Print the messages of a topic."""
    now = time.time_ns() // 1_000_000
    begin = None if start is None else parse_position(start, now)
    end = None if to is None else parse_position(to, now)
    partitions = await partitions_of(client, topic, partition)
    if group:
        await require_inactive(client.admin, group)
    positions = await first_offsets(client.admin, partitions, begin, group, committed)
    until = await last_offsets(client.admin, partitions, end, follow, committed)
    if until is not None:
        positions = {each: offset for each, offset in positions.items() if offset < until[each]}
        until = {each: until[each] for each in positions}
    if not positions:
        return
    done: dict[Partition, int] = {}
    if follow:
        client.cluster.patience = math.inf
    async with client.consumer(committed=committed, out_of_range=EARLIEST) as consumer:
        await consumer.assign(positions)
        said: dict[Partition, int] = {}
        beside = []
        if group:
            beside.append(asyncio.create_task(_commit_regularly(client.admin, group, done, said)))
        if until is None and partition is None:
            beside.append(asyncio.create_task(_follow_growth(client, topic, consumer)))
        try:
            await _print(consumer, form, key_separator, count, positions, until, done)
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
            if group and done != said:
                # Whoever ends this does not want to wait for a broker that is away.
                client.cluster.patience = LAST_COMMIT_SECONDS
                try:
                    await client.admin.commit(group, done)
                except ClientError as error:
                    raise HeadraceError(f"what was printed last is not committed for group {group}: {error}") from None


async def first_offsets(
    admin: Admin, partitions: list[Partition], begin: Position | None, group: str, committed: bool
) -> dict[Partition, int]:
    """Where to begin."""
    if begin is None:
        stands = await admin.committed(group, partitions, stable=committed) if group else {}
        rest = await offsets_at(admin, [each for each in partitions if each not in stands], Position(Kind.EARLIEST))
        return {each: stands[each].offset if each in stands else rest[each] for each in partitions}
    found = await offsets_at(admin, partitions, begin)
    if begin.kind is Kind.OFFSET and all(offset != begin.value for offset in found.values()):
        raise HeadraceError(
            f"offset {begin.value} is outside of {partitions[0][0]}; the nearest are "
            + ", ".join(f"{offset} in partition {index}" for (_, index), offset in found.items())
        )
    return found


async def last_offsets(
    admin: Admin, partitions: list[Partition], end: Position | None, follow: bool, committed: bool
) -> dict[Partition, int] | None:
    """Where to end; None: never."""
    if follow and end is None:
        return None
    if follow and end is not None and end.kind is Kind.OFFSET:
        return dict.fromkeys(partitions, end.value)
    return await offsets_at(admin, partitions, end or Position(Kind.LATEST), committed=committed)


async def _print(
    consumer: Consumer,
    form: Form,
    key_separator: str | None,
    count: int | None,
    positions: dict[Partition, int],
    until: dict[Partition, int] | None,
    done: dict[Partition, int],
) -> None:
    """Print records until the end, and note in `done` what has left this process."""
    total = None if until is None else sum(until[each] - positions[each] for each in positions)
    if total is not None and count:
        total = min(total, count)
    with binary_output() as out, progress_bar("consume", total, shown=not sys.stdout.isatty()) as advance:
        left = count or sys.maxsize
        async for chunk in consumer.chunks(until):
            key = (chunk.topic, chunk.partition)
            stop = sys.maxsize if until is None else until[key]
            damaged: DamagedBatch | None = None
            try:
                parsed = consumer.parse(chunk)
            except DamagedBatch as error:
                damaged, parsed = error, error.before
            found = [record for record in parsed if record.offset < stop][:left]
            out.write(
                b"".join([printed(form, key_separator, chunk.topic, chunk.partition, each[2:]) for each in found])
            )
            out.flush()
            left -= len(found)
            if damaged is not None and left:
                if found:
                    done[key] = found[-1].offset + 1
                raise HeadraceError(
                    f"{damaged}; `headrace log repair` on the broker's machine keeps what can be read, and "
                    f"--partition {chunk.partition} --from {damaged.last + 1} goes on behind it"
                )
            done[key] = min(chunk.next_offset, stop) if left else found[-1].offset + 1
            advance(len(found))
            if not left:
                return


async def _commit_regularly(admin: Admin, group: str, done: dict[Partition, int], said: dict[Partition, int]) -> None:
    """Commit now and then while following, so that a killed process repeats little; `said` has what was committed."""
    while True:
        await asyncio.sleep(COMMIT_SECONDS)
        if done != said:
            now = dict(done)
            await admin.commit(group, now)
            said.update(now)


async def _follow_growth(client: Client, topic: str, consumer: Consumer) -> None:
    """Go on in the partitions that the topic gets while it is followed."""
    while True:
        await asyncio.sleep(GROWTH_SECONDS)
        try:
            found = (await client.cluster.refresh([topic])).get(topic)
        except ClientError:
            # Whoever reads from it says so.
            continue
        if isinstance(found, TopicState):
            now = [(topic, index) for index in range(len(found.partitions))]
            if more := {each: 0 for each in now if each not in consumer.positions}:
                consumer.add(more)
