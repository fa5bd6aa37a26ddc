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
from headrace.cli.options import parse_path
from headrace.cli.output import progress
from headrace.client import Client
from headrace.errors import HeadraceError

PIECE_BYTES = 1 << 18
# Pieces that are read ahead of the broker.
AHEAD = 4
# The longest transaction that Kafka allows by default.
TRANSACTION_SECONDS = 900.0


@connects
async def produce(
    client: Client,
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    file: Annotated[
        Path | None, typer.Option(parser=parse_path, metavar="FILE", help="Read this file instead of standard input.")
    ] = None,
    form: Annotated[
        Form, typer.Option("--format", help="text: a message per line; json: as `consume` prints it; raw: one message.")
    ] = Form.TEXT,
    key: Annotated[str | None, typer.Option(help="The key of every message.")] = None,
    key_separator: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="The text between key and value in a line, as in `:` or `\\t`."),
    ] = None,
    headers: Annotated[
        list[str], typer.Option("--header", metavar="NAME=VALUE", help="A header of every message; may be repeated.")
    ] = [],  # noqa: B006 - typer copies it
    partition: Annotated[
        int | None, typer.Option(min=0, help="Send to this partition; by default by key, or in turn.")
    ] = None,
    compression: Annotated[str, typer.Option(help="none, gzip, snappy, lz4 or zstd.")] = "none",
    acks: Annotated[str, typer.Option(help="Acknowledgements to wait for: all, 1 or 0.")] = "all",
    transactional_id: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Send all messages in one transaction of this id."),
    ] = None,
) -> None:
    """Sends the lines of standard input, or of a file, as messages."""
    if acks not in ("all", "-1", "0", "1"):
        raise HeadraceError(f"--acks must be all, 1 or 0 (got {acks})")
    if key is not None and key_separator is not None:
        raise HeadraceError("--key and --key-separator exclude each other. Give one of them.")
    if transactional_id is not None and acks not in ("all", "-1"):
        raise HeadraceError(f"--transactional-id needs --acks all (got {acks})")
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

        # No bar where the user types the messages.
        shown = file is not None or not sys.stdin.isatty()
        size = None if file is None else os.fstat(source.fileno()).st_size
        with progress(shown=shown, in_bytes=True) as begin:
            advance = begin(topic, size)
            try:
                async for piece in pieces(source):
                    for message in parser.feed(piece):
                        await send(message)
                    advance(len(piece))
                for message in parser.end():
                    await send(message)
            except InputInvalid as error:
                if transactional_id is not None:
                    raise InputInvalid(f"{error}. The transaction is aborted.") from None
                # A user who corrects the line continues from there, and must know that all before it are sent.
                await producer.flush()
                raise InputInvalid(f"{error}. The messages before it are sent: {sent}.") from None
            await producer.flush()


async def pieces(source: Any) -> AsyncIterator[bytes]:
    """The bytes of a stream, as they come, without blocking the loop.

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
                return  # the loop has ended
            if not piece or not isinstance(piece, bytes):
                return

    threading.Thread(target=read, name="headrace-input", daemon=True).start()
    while piece := await queue.get():
        if not isinstance(piece, bytes):
            raise InputInvalid(f"the input cannot be read: {getattr(piece, 'strerror', None) or piece}")
        room.release()
        yield piece
