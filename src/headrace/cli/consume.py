"""`headrace consume`: a topic to standard output."""

from __future__ import annotations

import asyncio
import math
import sys
import time
from typing import Annotated

import typer

from headrace.cli.connect import connects
from headrace.cli.messages import Form, binary_output, format_record
from headrace.cli.offsets import offsets_at, partitions_of, require_inactive
from headrace.cli.output import progress
from headrace.cli.positions import HELP, Kind, Position, parse_position
from headrace.client import EARLIEST, Admin, Client, ClientError, Consumer
from headrace.client.cluster import Partition
from headrace.client.consumer import DamagedBatch
from headrace.client.lookups import TopicState
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
    to: Annotated[str | None, typer.Option(metavar="POSITION", help="Where to stop, exclusive; as --from.")] = None,
    count: Annotated[int | None, typer.Option(min=1, help="Stop after this many messages.")] = None,
    follow: Annotated[bool, typer.Option(help="Wait for new messages at the end of the topic.")] = False,
    group: Annotated[
        str, typer.Option(help="Begin at this group's committed offsets, and commit printed messages.")
    ] = "",
    form: Annotated[
        Form,
        typer.Option(
            "--format", help="text: a value per line; json: an object per line, with everything; raw: only values."
        ),
    ] = Form.TEXT,
    key_separator: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Print keys too, with this text between key and value.")
    ] = None,
    partition: Annotated[int | None, typer.Option(min=0, help="Only this partition.")] = None,
    committed: Annotated[bool, typer.Option("--committed", help="Print only committed messages.")] = False,
) -> None:
    """Prints the messages of a topic."""
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
    printed: dict[Partition, int] = {}
    if follow:
        client.cluster.patience = math.inf
    async with client.consumer(committed=committed, out_of_range=EARLIEST) as consumer:
        await consumer.assign(positions)
        stored: dict[Partition, int] = {}
        background = []
        if group:
            background.append(asyncio.create_task(_commit_regularly(client.admin, group, printed, stored)))
        if until is None and partition is None:
            background.append(asyncio.create_task(_follow_growth(client, topic, consumer)))
        try:
            await _print(consumer, form, key_separator, count, positions, until, printed)
        finally:
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)
            if group and printed != stored:
                # A user who stops the command does not want to wait for a broker that is away.
                client.cluster.patience = LAST_COMMIT_SECONDS
                try:
                    await client.admin.commit(group, printed)
                except ClientError as error:
                    raise HeadraceError(
                        f"the last printed messages are not committed for group {group}: {error}"
                    ) from None


async def first_offsets(
    admin: Admin, partitions: list[Partition], begin: Position | None, group: str, committed: bool
) -> dict[Partition, int]:
    """The offsets to begin at."""
    if begin is None:
        stands = await admin.committed(group, partitions, stable=committed) if group else {}
        rest = await offsets_at(admin, [each for each in partitions if each not in stands], Position(Kind.EARLIEST))
        return {each: stands[each].offset if each in stands else rest[each] for each in partitions}
    found = await offsets_at(admin, partitions, begin)
    if begin.kind is Kind.OFFSET and all(offset != begin.value for offset in found.values()):
        raise HeadraceError(
            f"offset {begin.value} is outside of {partitions[0][0]}. The nearest are "
            + ", ".join(f"{offset} in partition {index}" for (_, index), offset in found.items())
        )
    return found


async def last_offsets(
    admin: Admin, partitions: list[Partition], end: Position | None, follow: bool, committed: bool
) -> dict[Partition, int] | None:
    """The offsets to stop at; None: never."""
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
    """Print records until the end, and keep in `done` the next offset to print of each partition."""
    total = None if until is None else sum(until[each] - positions[each] for each in positions)
    if total is not None and count:
        total = min(total, count)
    with binary_output() as out, progress(shown=not sys.stdout.isatty()) as begin:
        advance = begin("consume", total)
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
                b"".join([format_record(form, key_separator, chunk.topic, chunk.partition, each[2:]) for each in found])
            )
            out.flush()
            left -= len(found)
            if damaged is not None and left:
                if found:
                    done[key] = found[-1].offset + 1
                raise HeadraceError(
                    f"{damaged}. Use --partition {chunk.partition} --from {damaged.last + 1} to continue behind it, or "
                    "`headrace log repair` on the broker's machine to keep the batches that can be read."
                )
            done[key] = min(chunk.next_offset, stop) if left else found[-1].offset + 1
            advance(len(found))
            if not left:
                return


async def _commit_regularly(admin: Admin, group: str, done: dict[Partition, int], stored: dict[Partition, int]) -> None:
    """Commit every second, so that a killed process repeats little; `stored` has the committed offsets."""
    while True:
        await asyncio.sleep(COMMIT_SECONDS)
        if done != stored:
            now = dict(done)
            await admin.commit(group, now)
            stored.update(now)


async def _follow_growth(client: Client, topic: str, consumer: Consumer) -> None:
    """Read partitions too that are added to the topic meanwhile."""
    while True:
        await asyncio.sleep(GROWTH_SECONDS)
        try:
            found = (await client.cluster.refresh([topic])).get(topic)
        except ClientError:
            # The fetch loops report it.
            continue
        if isinstance(found, TopicState):
            now = [(topic, index) for index in range(len(found.partitions))]
            if more := {each: 0 for each in now if each not in consumer.positions}:
                consumer.add(more)
