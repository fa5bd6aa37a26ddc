"""Protocol V2 without I/O: bytes in, commands out, or the refusal that NSQ has for them.

A command is a line of words, and for some a size and a body. Nothing is copied: a command holds where in the buffer its
body stands. What can be judged from the line is judged before the body has come, and a size before anything is kept for
it, as nsqd does it. What depends on the broker (does the topic exist, is the message in flight) is not judged here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from typing import NamedTuple

from headrace.broker.internal import is_protected
from headrace.broker.queues.consumer import REJECTED
from headrace.doors.nsq.errors import CommandError, plain, quoted
from headrace.doors.nsq.names import is_channel_name, is_topic_name
from headrace.doors.nsq.settings import NsqSettings
from headrace.format.delay import MAX_DELAY_MS
from headrace.format.message_id import ID_BYTES

MAGIC = b"  V2"
# nsqd's own read buffer: a longer line cannot be a command.
LINE_MAX = 16_384
# IDENTIFY and AUTH are read whole on the loop.
HELLO_MAX = 65_536
# The text of an error that comes with a REQ under the extension.
ERROR_TEXT_MAX = 65_536
# No number of NSQ's needs more digits.
DIGITS_MAX = 19

_SIZE = Struct(">i")


class State(IntEnum):
    """What a connection is for, by the numbers that nsqd's statistics show."""

    INIT = 0
    SUBSCRIBED = 3
    CLOSING = 4


@dataclass(frozen=True, slots=True)
class Limits:
    """What a command may ask for."""

    max_msg_size: int
    max_body_size: int
    max_rdy_count: int
    max_req_timeout_ms: int

    @classmethod
    def of(cls, settings: NsqSettings) -> Limits:
        """Those of the configuration."""
        return cls(
            settings.nsq_max_msg_size,
            settings.nsq_max_body_size,
            settings.nsq_max_rdy_count,
            settings.nsq_max_req_timeout_ms,
        )


class Command(NamedTuple):
    """A whole command. A tuple, because one is made for every command that no kernel takes."""

    name: bytes
    words: list[bytes]
    """What follows the name."""
    number: int
    """The count of a RDY, the milliseconds of a REQ or DPUB; 0 elsewhere."""
    start: int
    """Where its body begins and `end`s; the same where it has none."""
    end: int
    line_end: int
    """Behind the line, before the body's size."""


class Body(NamedTuple):
    """What may follow a line."""

    code: str
    words: str
    least: int
    most: int
    too_big: str


Rule = Callable[["Codec", list[bytes]], tuple[int, Body | None]]


class Codec:
    """One connection's side of the conversation: what state it is in decides which commands make sense."""

    __slots__ = ("extended", "heartbeats", "limits", "needed", "state", "tls_missing")

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.state = State.INIT
        self.extended = False
        """Messages carry key and headers (`"headrace": 1`)."""
        self.heartbeats = True
        self.tls_missing = False
        """TLS is required, and this connection has none yet."""
        self.needed = 0
        """Bytes of the cut command that `next` found, as far as they are known; 0 where they are not."""

    def next(self, buffer: bytearray, position: int, end: int) -> Command | None:
        """The command at `position`; None where it is cut. Raises CommandError."""
        self.needed = 0
        newline = buffer.find(b"\n", position, min(end, position + LINE_MAX))
        if newline < 0:
            if end - position >= LINE_MAX:
                raise CommandError("E_INVALID", f"command line longer than {LINE_MAX} bytes")
            return None
        line = bytes(buffer[position:newline])
        name, *words = line.removesuffix(b"\r").split(b" ")
        rule = RULES.get(name)
        if self.tls_missing and name != b"IDENTIFY":
            raise CommandError("E_INVALID", f"cannot {plain(name)} in current state (TLS required)")
        if rule is None:
            raise CommandError("E_INVALID", f"invalid command {plain(name)}")
        number, body = rule(self, words)
        at = newline + 1
        if body is None:
            return Command(name, words, number, at, at, at)
        if end - at < 4:
            self.needed = at + 4 - position
            return None
        (size,) = _SIZE.unpack_from(buffer, at)
        if size < body.least:
            raise CommandError(body.code, f"{name.decode()} invalid {body.words} size {size}")
        if size > body.most:
            raise CommandError(body.code, f"{name.decode()} {body.too_big} too big {size} > {body.most}")
        stop = at + 4 + size
        if stop > end:
            self.needed = stop - position
            return None
        return Command(name, words, number, at + 4, stop, at)

    # --- what each command asks of its line ---------------------------------------------------------------------------

    def _identify(self, words: list[bytes]) -> tuple[int, Body | None]:
        self._in_state("IDENTIFY", State.INIT)
        return 0, self._body(HELLO_MAX)

    def _auth(self, words: list[bytes]) -> tuple[int, Body | None]:
        self._in_state("AUTH", State.INIT)
        if words:
            raise CommandError("E_INVALID", "AUTH invalid number of parameters")
        return 0, self._body(HELLO_MAX)

    def _sub(self, words: list[bytes]) -> tuple[int, Body | None]:
        self._in_state("SUB", State.INIT)
        if not self.heartbeats:
            raise CommandError("E_INVALID", "cannot SUB with heartbeats disabled")
        if len(words) < 2:
            raise CommandError("E_INVALID", "SUB insufficient number of parameters")
        _topic("SUB", words[0])
        if not words[1].isascii() or not is_channel_name(words[1].decode()):
            raise CommandError("E_BAD_CHANNEL", f"SUB channel name {quoted(words[1])} is not valid")
        return 0, None

    def _pub(self, words: list[bytes]) -> tuple[int, Body | None]:
        if not words:
            raise CommandError("E_INVALID", "PUB insufficient number of parameters")
        _topic("PUB", words[0])
        return 0, self._message()

    def _mpub(self, words: list[bytes]) -> tuple[int, Body | None]:
        if not words:
            raise CommandError("E_INVALID", "MPUB insufficient number of parameters")
        _topic("MPUB", words[0])
        return 0, self._body(self.limits.max_body_size)

    def _dpub(self, words: list[bytes]) -> tuple[int, Body | None]:
        if len(words) < 2:
            raise CommandError("E_INVALID", "DPUB insufficient number of parameters")
        _topic("DPUB", words[0])
        delay = _number("DPUB could not parse timeout", words[1])
        # nsqd keeps what is deferred in memory, so its clients expect a bound; the timer keeps it on disk.
        most = MAX_DELAY_MS if self.extended else self.limits.max_req_timeout_ms
        if delay > most:
            raise CommandError("E_INVALID", f"DPUB timeout {delay} out of range 0-{most}")
        return delay, self._message()

    def _rdy(self, words: list[bytes]) -> tuple[int, Body | None]:
        if self.state is State.CLOSING:
            # A client that sent CLS gets nothing more, whatever it asks for.
            return 0, None
        self._in_state("RDY", State.SUBSCRIBED)
        count = _number("RDY could not parse count", words[0]) if words else 1
        if count > self.limits.max_rdy_count:
            raise CommandError("E_INVALID", f"RDY count {count} out of range 0-{self.limits.max_rdy_count}")
        return count, None

    def _fin(self, words: list[bytes]) -> tuple[int, Body | None]:
        self._delivered("FIN", words, 1)
        return 0, None

    def _touch(self, words: list[bytes]) -> tuple[int, Body | None]:
        self._delivered("TOUCH", words, 1)
        return 0, None

    def _req(self, words: list[bytes]) -> tuple[int, Body | None]:
        self._delivered("REQ", words, 2)
        if self.extended and words[1] == b"-1":
            delay = REJECTED
        else:
            delay = min(_number("REQ could not parse timeout", words[1]), self.limits.max_req_timeout_ms)
        return delay, Body("E_BAD_BODY", "error", 0, ERROR_TEXT_MAX, "error") if self.extended else None

    def _cls(self, words: list[bytes]) -> tuple[int, Body | None]:
        self._in_state("CLS", State.SUBSCRIBED)
        return 0, None

    def _nop(self, words: list[bytes]) -> tuple[int, Body | None]:
        return 0, None

    def _in_state(self, name: str, *states: State) -> None:
        if self.state not in states:
            raise CommandError("E_INVALID", f"cannot {name} in current state")

    def _delivered(self, name: str, words: list[bytes], count: int) -> None:
        self._in_state(name, State.SUBSCRIBED, State.CLOSING)
        if len(words) < count:
            raise CommandError("E_INVALID", f"{name} insufficient number of params")
        if len(words[0]) != ID_BYTES:
            raise CommandError("E_INVALID", "invalid message ID")

    def _message(self) -> Body:
        return Body("E_BAD_MESSAGE", "message body", 1, self.limits.max_msg_size, "message")

    def _body(self, most: int) -> Body:
        return Body("E_BAD_BODY", "body", 1, min(most, self.limits.max_body_size), "body")


def _topic(name: str, topic: bytes) -> None:
    text = topic.decode("latin-1")
    # The broker's own topics are not for clients; other letters than ASCII's are in no name.
    if not is_topic_name(text) or is_protected(text):
        raise CommandError("E_BAD_TOPIC", f"{name} topic name {quoted(topic)} is not valid")


def _number(wrong: str, word: bytes) -> int:
    """Digits and nothing else, as nsqd reads them: a sign is no digit."""
    if not word.isdigit() or len(word) > DIGITS_MAX:
        raise CommandError("E_INVALID", f"{wrong} {plain(word)}")
    return int(word)


RULES: dict[bytes, Rule] = {
    b"IDENTIFY": Codec._identify,
    b"AUTH": Codec._auth,
    b"SUB": Codec._sub,
    b"PUB": Codec._pub,
    b"MPUB": Codec._mpub,
    b"DPUB": Codec._dpub,
    b"RDY": Codec._rdy,
    b"FIN": Codec._fin,
    b"REQ": Codec._req,
    b"TOUCH": Codec._touch,
    b"CLS": Codec._cls,
    b"NOP": Codec._nop,
}
