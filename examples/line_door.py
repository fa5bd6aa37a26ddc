"""A door for a protocol of lines, in front of a whole broker. `docs/adding-a-door.md` walks through it.

    python examples/line_door.py serve --data ./data --line 127.0.0.1:4444

A client sends lines, and can be `nc`. A TEXT is a message with everything unusual in it as %XX.

    PUB TOPIC TEXT [TEXT...]     OK, once all of them are durable
    SUB TOPIC QUEUE COUNT        OK; then up to COUNT messages at a time, each a line: MSG ID ATTEMPT TEXT
    FIN ID                       settles a message
    REQ ID                       sends one back, to be delivered again

What cannot be done is answered with ERR, a word for programs, and a sentence for people. Topic and queue are made when
they are first named.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from urllib.parse import quote_from_bytes, unquote_to_bytes

from headrace.addresses import format_address
from headrace.broker.publish import Message
from headrace.broker.queues import Consumer
from headrace.broker.queues.delivery import Claimed
from headrace.broker.security import Session
from headrace.cli.serve import serve
from headrace.config import Config
from headrace.doors.acceptor import BufferedAcceptor
from headrace.doors.connection import BufferedConnection
from headrace.doors.door import DoorContext, open_listener
from headrace.doors.registry import DOORS, DoorEntry
from headrace.errors import HeadraceError
from headrace.settings import Settings, setting

LINE_MAX = 524_288
# A line that is cut is kept, and received on, in here.
BUFFER_BYTES = 2 * LINE_MAX
STOP_SECONDS = 5.0
MESSAGE_ID = re.compile(r"(\d{1,9})-(\d{1,18})-(\d{1,9})")


class LineSettings(Settings):
    """What the door is given."""

    line: str = setting("127.0.0.1:4444", "HOST:PORT of the line door, or `off`.", address=True)


class LineConfig(LineSettings, Config):
    """The settings of a broker with a line door."""


class LineConnection(BufferedConnection):
    """A client. Also the sink of its subscription."""

    __slots__ = ("_consumer", "_session")

    door: LineDoor

    def __init__(self, door: LineDoor, number: int) -> None:
        super().__init__(door)
        # Messages of one session keep their order: they go to one partition.
        self._session = Session(number)
        self._consumer: Consumer | None = None

    # --- lines in -----------------------------------------------------------------------------------------------------

    def _consume(self, buffer: bytearray, end: int) -> int:
        position = 0
        # A line that must wait for something sets a reason to hold: the rest is handed over again after it.
        while not self._held:
            newline = buffer.find(b"\n", position, end)
            if newline < 0:
                if end - position > LINE_MAX:
                    self._refuse("TooLong", f"a line has at most {LINE_MAX} bytes")
                    self.close()
                break
            self._do(buffer[position:newline].decode("ascii", "replace").removesuffix("\r").split(" "))
            position = newline + 1
        return position

    def _do(self, words: list[str]) -> None:
        match words:
            case ["PUB", topic, _, *_]:
                self.run(self._publish(topic, words[2:]))
            case ["SUB", topic, queue, count] if count.isdecimal() and len(count) < 5 and self._consumer is None:
                self.run(self._subscribe(topic, queue, int(count)))
            case ["FIN" | "REQ" as verb, text] if (found := MESSAGE_ID.fullmatch(text)) and self._consumer is not None:
                lane, offset, attempt = map(int, found.groups())
                if verb == "FIN":
                    done = self._consumer.finish(lane, offset, attempt)
                else:
                    done = self._consumer.requeue(lane, offset, attempt, 0)
                if not done:
                    self._refuse("NotInFlight", f"{text} is not in flight to this client")
            case _:
                self._refuse("BadLine", f"{' '.join(words)[:80]!r} is no PUB, SUB, FIN or REQ that could be done now")

    async def _publish(self, topic: str, texts: Sequence[str]) -> None:
        messages = [Message(None, unquote_to_bytes(text), []) for text in texts]
        await self.door.broker.publisher.publish(self._session, topic, messages)
        self.write(b"OK\n")

    async def _subscribe(self, name: str, queue_name: str, count: int) -> None:
        broker = self.door.broker
        topic = await broker.topics.ensure(name)
        queue = await broker.queues.ensure(topic, queue_name)
        if not self.closing:
            self._consumer = queue.subscribe(self, label=f"line {self.name}")
            self.write(b"OK\n")
            self._consumer.ready(count)

    def _failed(self, error: Exception) -> None:
        if isinstance(error, HeadraceError):
            self._refuse(type(error).__name__, str(error))
        else:
            super()._failed(error)

    def _refuse(self, code: str, reason: str) -> None:
        self.write(f"ERR {code} {reason}\n".encode())

    # --- messages out -------------------------------------------------------------------------------------------------

    def deliver(self, claimed: Claimed) -> None:
        """Send messages."""
        for offset, attempt, _, _, value, _ in claimed.messages():
            text = quote_from_bytes(value or b"")
            self.write(f"MSG {claimed.lane}-{offset}-{attempt} {attempt} {text}\n".encode())

    def gone(self, reason: str) -> None:
        """The queue was deleted."""
        self._consumer = None
        self.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._consumer is not None:
            self._consumer.hold()

    def resume_writing(self) -> None:
        if self._consumer is not None:
            self._consumer.go_on()
        super().resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            # What it had not settled goes to others.
            consumer.close()
        super().connection_lost(error)


class LineDoor(BufferedAcceptor[LineConnection]):
    """The line protocol in front of a broker."""

    name = "line"

    def __init__(self, context: DoorContext[LineSettings]) -> None:
        self.broker = context.broker
        self.settings, self._shared = context.settings, context.shared
        super().__init__(
            self.broker.metrics.door(self.name),
            self._shared.connections_max,
            context.capacity,
            buffer_bytes=BUFFER_BYTES,
        )
        self._numbers = 0
        self._listeners = context.listeners

    @property
    def addresses(self) -> dict[str, str]:
        """HOST:PORT of the door, once it is open."""
        return {self.name: format_address(*self.address)} if self.is_open else {}

    async def start(self) -> None:
        """Listen. Raises DoorClosed."""
        if await open_listener(self.name, self.settings.line, self.listen, self._listeners):
            self.close_idle(self._shared.connections_idle_ms / 1000)

    async def stop(self) -> None:
        """Accept no more, answer what is under way, close."""
        await self.close(STOP_SECONDS)

    def connect(self) -> LineConnection:
        """A connection for a client that has come."""
        self._numbers += 1
        return LineConnection(self, self._numbers)


ENTRY = DoorEntry(LineDoor.name, f"{__name__}:LineDoor", LineSettings)

if __name__ == "__main__":
    if sys.argv[1:2] != ["serve"]:
        sys.exit("usage: line_door.py serve [--line HOST:PORT] [the flags of `headrace serve`]")
    sys.exit(serve(sys.argv[2:], LineConfig, (*DOORS, ENTRY)))
