"""Protocol V2 without I/O: bytes in, commands out, or the refusal that NSQ has for them.

A command is a line of words, and for some a size and a body. Nothing is copied: a command holds where in the buffer its
body stands. What can be judged from the line is judged before the body has come, and a size before anything is kept for
it, as nsqd does it. What depends on the broker (does the topic exist, is the message in flight) is not judged here.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, IntEnum
from struct import Struct
from typing import NamedTuple

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
    """What follows a line, and how its size is judged."""

    code: str
    words: str
    least: int
    most: int
    too_big: str


class BodyKind(Enum):
    """What the body of a command is."""

    NONE = 0
    HELLO = 1
    MESSAGE = 2
    MESSAGES = 3
    ERROR = 4
    """Under the extension only."""


class Rule(NamedTuple):
    """What a command asks of its connection and of its line."""

    body: BodyKind = BodyKind.NONE
    states: tuple[State, ...] = tuple(State)
    words: int = 0
    """At least."""
    first: str = ""
    """What the first word is: a topic, or the id of a message."""


class Codec:
    """One connection's side of the conversation: what state it is in decides which commands make sense."""

    __slots__ = ("extended", "heartbeats", "needed", "settings", "state", "tls_missing")

    def __init__(self, settings: NsqSettings) -> None:
        self.settings = settings
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
        number = self._judge(name.decode(), rule, words)
        at = newline + 1
        if rule.body is BodyKind.NONE or (rule.body is BodyKind.ERROR and not self.extended):
            return Command(name, words, number, at, at, at)
        if end - at < 4:
            self.needed = at + 4 - position
            return None
        (size,) = _SIZE.unpack_from(buffer, at)
        body = self._body(rule.body)
        if size < body.least:
            raise CommandError(body.code, f"{name.decode()} invalid {body.words} size {size}")
        if size > body.most:
            raise CommandError(body.code, f"{name.decode()} {body.too_big} too big {size} > {body.most}")
        stop = at + 4 + size
        if stop > end:
            self.needed = stop - position
            return None
        return Command(name, words, number, at + 4, stop, at)

    def _body(self, kind: BodyKind) -> Body:
        """What a body of that kind may be."""
        if kind is BodyKind.MESSAGE:
            return Body("E_BAD_MESSAGE", "message body", 1, self.settings.nsq_max_msg_size, "message")
        if kind is BodyKind.ERROR:
            return Body("E_BAD_BODY", "error", 0, ERROR_TEXT_MAX, "error")
        most = self.settings.nsq_max_body_size
        return Body("E_BAD_BODY", "body", 1, most if kind is BodyKind.MESSAGES else min(HELLO_MAX, most), "body")

    def _judge(self, name: str, rule: Rule, words: list[bytes]) -> int:
        """Judge a line by its rule, in nsqd's order; the number in it. Raises CommandError."""
        if self.state not in rule.states:
            raise CommandError("E_INVALID", f"cannot {name} in current state")
        if name == "SUB" and not self.heartbeats:
            raise CommandError("E_INVALID", "cannot SUB with heartbeats disabled")
        if name == "AUTH" and words:
            raise CommandError("E_INVALID", "AUTH invalid number of parameters")
        if len(words) < rule.words:
            called = "params" if rule.first == "id" else "parameters"
            raise CommandError("E_INVALID", f"{name} insufficient number of {called}")
        # Other letters than ASCII's are in no name.
        if rule.first == "topic" and not is_topic_name(words[0].decode("latin-1")):
            raise CommandError("E_BAD_TOPIC", f"{name} topic name {quoted(words[0])} is not valid")
        if rule.first == "id" and len(words[0]) != ID_BYTES:
            raise CommandError("E_INVALID", "invalid message ID")
        if name == "SUB" and not is_channel_name(words[1].decode("latin-1")):
            raise CommandError("E_BAD_CHANNEL", f"SUB channel name {quoted(words[1])} is not valid")
        judge = NUMBERS.get(name)
        return judge(self, words) if judge is not None else 0

    def _dpub_delay(self, words: list[bytes]) -> int:
        delay = _number("DPUB could not parse timeout", words[1])
        # nsqd keeps what is deferred in memory, so its clients expect a bound; the timer keeps it on disk.
        most = MAX_DELAY_MS if self.extended else self.settings.nsq_max_req_timeout_ms
        if delay > most:
            raise CommandError("E_INVALID", f"DPUB timeout {delay} out of range 0-{most}")
        return delay

    def _req_delay(self, words: list[bytes]) -> int:
        if self.extended and words[1] == b"-1":
            return REJECTED
        return min(_number("REQ could not parse timeout", words[1]), self.settings.nsq_max_req_timeout_ms)

    def _rdy_count(self, words: list[bytes]) -> int:
        if self.state is State.CLOSING:
            # A client that sent CLS gets nothing more, whatever it asks for.
            return 0
        count = _number("RDY could not parse count", words[0]) if words else 1
        if count > self.settings.nsq_max_rdy_count:
            raise CommandError("E_INVALID", f"RDY count {count} out of range 0-{self.settings.nsq_max_rdy_count}")
        return count


def _number(wrong: str, word: bytes) -> int:
    """Digits and nothing else, as nsqd reads them: a sign is no digit."""
    if not word.isdigit() or len(word) > DIGITS_MAX:
        raise CommandError("E_INVALID", f"{wrong} {plain(word)}")
    return int(word)


FIRST = (State.INIT,)
DELIVERING = (State.SUBSCRIBED, State.CLOSING)
RULES = {
    b"IDENTIFY": Rule(BodyKind.HELLO, FIRST),
    b"AUTH": Rule(BodyKind.HELLO, FIRST),
    b"SUB": Rule(states=FIRST, words=2, first="topic"),
    b"PUB": Rule(BodyKind.MESSAGE, words=1, first="topic"),
    b"MPUB": Rule(BodyKind.MESSAGES, words=1, first="topic"),
    b"DPUB": Rule(BodyKind.MESSAGE, words=2, first="topic"),
    b"RDY": Rule(states=DELIVERING),
    b"FIN": Rule(states=DELIVERING, words=1, first="id"),
    b"REQ": Rule(BodyKind.ERROR, DELIVERING, 2, "id"),
    b"TOUCH": Rule(states=DELIVERING, words=1, first="id"),
    b"CLS": Rule(states=(State.SUBSCRIBED,)),
    b"NOP": Rule(),
}
NUMBERS: dict[str, Callable[[Codec, list[bytes]], int]] = {
    "DPUB": Codec._dpub_delay,
    "REQ": Codec._req_delay,
    "RDY": Codec._rdy_count,
}
