"""`headrace produce`: standard input, or a file, into a topic."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.cli.connect import connects
from headrace.cli.messages import Form, InputInvalid, Message, Parser, parse_header
from headrace.cli.paths import path_of
from headrace.cli.progress import progress_bar
from headrace.client import Client
from headrace.errors import HeadraceError

PIECE_BYTES = 1 << 18
# Pieces that are read ahead of the broker.
AHEAD = 4
# The longest transaction that Kafka allows unless it is told otherwise.
TRANSACTION_SECONDS = 900.0


@connects
async def produce(
    client: Client,
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    file: Annotated[
        Path | None, typer.Option(parser=path_of, metavar="FILE", help="Read this file instead of standard input.")
    ] = None,
    form: Annotated[
        Form, typer.Option("--format", help="text: a message a line; json: as `consume` prints it; raw: one message.")
    ] = Form.TEXT,
    key: Annotated[str | None, typer.Option(help="The key of every message.")] = None,
    key_separator: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="What stands between key and value in a line, as in `:` or `\\t`."),
    ] = None,
    headers: Annotated[
        list[str], typer.Option("--header", metavar="NAME=VALUE", help="A header of every message; may be repeated.")
    ] = [],  # noqa: B006 - typer copies it
    partition: Annotated[int | None, typer.Option(min=0, help="Where to; by key, or in turn, if not given.")] = None,
    compression: Annotated[str, typer.Option(help="none, gzip, snappy, lz4 or zstd.")] = "none",
    acks: Annotated[str, typer.Option(help="all, 1 or 0: whose word to wait for.")] = "all",
    transactional_id: Annotated[
        str | None,
        typer.Option(
            metavar="ID", help="One transaction of this id: readers of committed messages see all or nothing."
        ),
    ] = None,
) -> None:
    """Send the lines of standard input, or of a file, as messages."""
    if acks not in ("all", "-1", "0", "1"):
        raise HeadraceError(f"--acks {acks} is none of all, 1 and 0")
    if key is not None and key_separator is not None:
        raise HeadraceError("--key and --key-separator both say what the key is: give one of them")
    if transactional_id is not None and acks not in ("all", "-1"):
        raise HeadraceError(f"--transactional-id needs --acks all, not {acks}: who does not listen cannot commit")
    given_key = None if key is None else os.fsencode(key)
    given_headers = [parse_header(each) for each in headers]
    parser = Parser(form, key_separator)
    try:
        source = sys.stdin.buffer if file is None else file.open("rb")
    except OSError as error:
        raise HeadraceError(f"{file} cannot be read: {error.strerror}") from None

    async with AsyncExitStack() as ending:
        if transactional_id is None:
            plain = client.producer(acks=-1 if acks == "all" else int(acks), compression=compression)
            producer = await ending.enter_async_context(plain)
        else:
            made = client.transactional(
                transactional_id, transaction_timeout=TRANSACTION_SECONDS, compression=compression
            )
            producer = await ending.enter_async_context(made)
            await ending.enter_async_context(made.transaction())

        sent = 0

        async def send(message: Message) -> None:
            nonlocal sent
            await producer.send(
                topic,
                message.value,
                given_key if message.key is None else message.key,
                headers=[*message.headers, *given_headers],
                partition=partition,
                timestamp=message.timestamp,
            )
            sent += 1

        # A bar only where it does not get into the way of typing.
        shown = file is not None or not sys.stdin.isatty()
        size = None if file is None else os.fstat(source.fileno()).st_size
        with progress_bar(topic, size, shown=shown, in_bytes=True) as advance:
            try:
                async for piece in pieces(source):
                    for message in parser.feed(piece):
                        await send(message)
                    advance(len(piece))
                for message in parser.end():
                    await send(message)
            except InputInvalid as error:
                if transactional_id is not None:
                    raise InputInvalid(f"{error}; the transaction is aborted") from None
                # Whoever mends the line goes on from there, and so must know that all before it are in.
                await producer.flush()
                raise InputInvalid(f"{error}; the messages before it were sent: {sent}") from None
            await producer.flush()


async def pieces(source: Any) -> AsyncIterator[bytes]:
    """What a stream holds, as it comes, without keeping the loop from sending meanwhile.

    A daemon thread reads, past the stream's own buffer: a read that waits for a keystroke must not keep the process
    from ending, and one inside of a buffer's lock would.
    """
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[bytes | OSError | ValueError] = asyncio.Queue()
    room = threading.Semaphore(AHEAD)
    raw = getattr(source, "raw", source)

    def read() -> None:
        while True:
            room.acquire()
            try:
                piece: bytes | OSError | ValueError = raw.read(PIECE_BYTES)
            except (OSError, ValueError) as error:  # ValueError: the stream is closed
                piece = error
            try:
                loop.call_soon_threadsafe(queue.put_nowait, piece)
            except RuntimeError:
                return  # the loop has ended: nobody wants to know
            if not piece or not isinstance(piece, bytes):
                return

    threading.Thread(target=read, name="headrace-input", daemon=True).start()
    while piece := await queue.get():
        if not isinstance(piece, bytes):
            raise InputInvalid(f"the input cannot be read: {getattr(piece, 'strerror', None) or piece}")
        room.release()
        yield piece
