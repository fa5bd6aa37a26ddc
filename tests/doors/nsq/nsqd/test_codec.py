"""Protocol V2 by byte strings: what is a command, and what NSQ says to everything else."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.config import Config
from headrace.doors.nsq.errors import CommandError
from headrace.doors.nsq.nsqd.codec import HELLO_MAX, LINE_MAX, Codec, Command, State

SETTINGS = Config()
ID = b"0123456789abcdef"
TOO_LARGE = struct.pack(">i", SETTINGS.nsq_max_msg_size + 1)
ONE = struct.pack(">i", 1) + b"x"
BIG = b"9" * 19


def codec(state: State = State.INIT, **attributes: bool) -> Codec:
    made = Codec(SETTINGS)
    made.state = state
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


def read(data: bytes, state: State = State.INIT, **attributes: bool) -> Command | None:
    return codec(state, **attributes).next(bytearray(data), 0, len(data))


@pytest.mark.parametrize(
    ("data", "state", "words", "number", "body"),
    [
        (b"NOP\n", State.INIT, [], 0, b""),
        (b"NOP\r\n", State.INIT, [], 0, b""),
        (b"IDENTIFY\n\0\0\0\x02{}", State.INIT, [], 0, b"{}"),
        (b"AUTH\n\0\0\0\x06secret", State.INIT, [], 0, b"secret"),
        (b"SUB t c\n", State.INIT, [b"t", b"c"], 0, b""),
        (b"SUB t#ephemeral c#ephemeral\n", State.INIT, [b"t#ephemeral", b"c#ephemeral"], 0, b""),
        (b"PUB t\n" + ONE, State.INIT, [b"t"], 0, b"x"),
        (b"PUB t\r\n" + ONE, State.SUBSCRIBED, [b"t"], 0, b"x"),
        (b"MPUB t\n" + ONE, State.CLOSING, [b"t"], 0, b"x"),
        (b"DPUB t 0\n" + ONE, State.INIT, [b"t", b"0"], 0, b"x"),
        (b"DPUB t 3600000\n" + ONE, State.INIT, [b"t", b"3600000"], 3_600_000, b"x"),
        (b"RDY 2500\n", State.SUBSCRIBED, [b"2500"], 2500, b""),
        (b"RDY 0\n", State.SUBSCRIBED, [b"0"], 0, b""),
        (b"RDY\n", State.SUBSCRIBED, [], 1, b""),
        (b"RDY whatever\n", State.CLOSING, [b"whatever"], 0, b""),
        (b"FIN " + ID + b"\n", State.SUBSCRIBED, [ID], 0, b""),
        (b"FIN " + ID + b"\n", State.CLOSING, [ID], 0, b""),
        (b"REQ " + ID + b" 0\n", State.SUBSCRIBED, [ID, b"0"], 0, b""),
        (b"REQ " + ID + b" " + BIG + b"\n", State.SUBSCRIBED, [ID, BIG], 3_600_000, b""),
        (b"TOUCH " + ID + b"\n", State.SUBSCRIBED, [ID], 0, b""),
        (b"CLS\n", State.SUBSCRIBED, [], 0, b""),
    ],
)
def test_commands(data: bytes, state: State, words: list[bytes], number: int, body: bytes) -> None:
    command = read(data, state)
    assert command is not None
    assert (command.name, command.words, command.number) == (data.split()[0], words, number)
    assert data[command.start : command.end] == body
    assert command.end == len(data)
    for cut in range(len(data)):
        made = codec(state)
        assert made.next(bytearray(data), 0, cut) is None
        # What it says to need is never more than there is to come.
        assert made.needed <= len(data)


def test_what_is_needed_is_known_with_the_size() -> None:
    made = codec()
    data = bytearray(b"xxPUB t\n\0\0\x10\0")
    assert made.next(data, 2, len(data)) is None
    assert made.needed == len(data) - 2 + 4096


def test_an_error_text_follows_a_req_under_the_extension() -> None:
    command = read(b"REQ " + ID + b" 10\n\0\0\0\x04oops", State.SUBSCRIBED, extended=True)
    assert command is not None
    assert (command.number, command.end - command.start) == (10, 4)
    command = read(b"REQ " + ID + b" 10\n\0\0\0\0", State.SUBSCRIBED, extended=True)
    assert command is not None
    assert command.end == command.start


@pytest.mark.parametrize(
    ("data", "state", "error"),
    [
        (b"\n", State.INIT, "E_INVALID invalid command "),
        (b"HELP\n", State.INIT, "E_INVALID invalid command HELP"),
        (b"pub t\n", State.INIT, "E_INVALID invalid command pub"),
        (b'A\x00\xff"\n', State.INIT, r"E_INVALID invalid command A\x00\\xff\""),
        (b"x" * LINE_MAX, State.INIT, "E_INVALID command line longer than 16384 bytes"),
        (b"IDENTIFY\n", State.SUBSCRIBED, "E_INVALID cannot IDENTIFY in current state"),
        (b"IDENTIFY\n\0\0\0\0", State.INIT, "E_BAD_BODY IDENTIFY invalid body size 0"),
        (b"IDENTIFY\n\xff\xff\xff\xff", State.INIT, "E_BAD_BODY IDENTIFY invalid body size -1"),
        (b"IDENTIFY\n\x7f\xff\xff\xff", State.INIT, f"E_BAD_BODY IDENTIFY body too big 2147483647 > {HELLO_MAX}"),
        (b"IDENTIFY\n\0\1\0\1", State.INIT, "E_BAD_BODY IDENTIFY body too big 65537 > 65536"),
        (b"AUTH\n\0\1\0\1", State.INIT, "E_BAD_BODY AUTH body too big 65537 > 65536"),
        (b"AUTH\n", State.SUBSCRIBED, "E_INVALID cannot AUTH in current state"),
        (b"AUTH secret\n", State.INIT, "E_INVALID AUTH invalid number of parameters"),
        (b"AUTH\n\0\0\0\0", State.INIT, "E_BAD_BODY AUTH invalid body size 0"),
        (b"SUB t c\n", State.SUBSCRIBED, "E_INVALID cannot SUB in current state"),
        (b"SUB t c\n", State.CLOSING, "E_INVALID cannot SUB in current state"),
        (b"SUB t\n", State.INIT, "E_INVALID SUB insufficient number of parameters"),
        (b"SUB\n", State.INIT, "E_INVALID SUB insufficient number of parameters"),
        (b"SUB bad! c\n", State.INIT, 'E_BAD_TOPIC SUB topic name "bad!" is not valid'),
        (b"SUB  c\n", State.INIT, 'E_BAD_TOPIC SUB topic name "" is not valid'),
        (b"SUB t bad!\n", State.INIT, 'E_BAD_CHANNEL SUB channel name "bad!" is not valid'),
        (b"SUB t \n", State.INIT, 'E_BAD_CHANNEL SUB channel name "" is not valid'),
        (b"SUB t \xff\n", State.INIT, 'E_BAD_CHANNEL SUB channel name "\\\\xff" is not valid'),
        (b"SUB t c#other\n", State.INIT, 'E_BAD_CHANNEL SUB channel name "c#other" is not valid'),
        (b"PUB\n", State.INIT, "E_INVALID PUB insufficient number of parameters"),
        (b"PUB t!\n", State.INIT, 'E_BAD_TOPIC PUB topic name "t!" is not valid'),
        (b"PUB " + b"t" * 65 + b"\n", State.INIT, f'E_BAD_TOPIC PUB topic name "{"t" * 65}" is not valid'),
        (b"PUB t.ephemeral\n", State.INIT, 'E_BAD_TOPIC PUB topic name "t.ephemeral" is not valid'),
        (b"PUB #ephemeral\n", State.INIT, 'E_BAD_TOPIC PUB topic name "#ephemeral" is not valid'),
        (b"PUB ..\n", State.INIT, 'E_BAD_TOPIC PUB topic name ".." is not valid'),
        (b"PUB __queues\n", State.INIT, 'E_BAD_TOPIC PUB topic name "__queues" is not valid'),
        (b"SUB __consumer_offsets c\n", State.INIT, 'E_BAD_TOPIC SUB topic name "__consumer_offsets" is not valid'),
        (b"PUB t\n\0\0\0\0", State.INIT, "E_BAD_MESSAGE PUB invalid message body size 0"),
        (b"PUB t\n\x80\0\0\0", State.INIT, "E_BAD_MESSAGE PUB invalid message body size -2147483648"),
        (b"PUB t\n" + TOO_LARGE, State.INIT, "E_BAD_MESSAGE PUB message too big 1048577 > 1048576"),
        (b"MPUB\n", State.INIT, "E_INVALID MPUB insufficient number of parameters"),
        (b"MPUB t!\n", State.INIT, 'E_BAD_TOPIC MPUB topic name "t!" is not valid'),
        (b"MPUB t\n\0\0\0\0", State.INIT, "E_BAD_BODY MPUB invalid body size 0"),
        (b"MPUB t\n\x7f\0\0\0", State.INIT, "E_BAD_BODY MPUB body too big 2130706432 > 5242880"),
        (b"DPUB t\n", State.INIT, "E_INVALID DPUB insufficient number of parameters"),
        (b"DPUB t! 1\n", State.INIT, 'E_BAD_TOPIC DPUB topic name "t!" is not valid'),
        (b"DPUB t soon\n", State.INIT, "E_INVALID DPUB could not parse timeout soon"),
        (b"DPUB t -1\n", State.INIT, "E_INVALID DPUB could not parse timeout -1"),
        (b"DPUB t 3600001\n", State.INIT, "E_INVALID DPUB timeout 3600001 out of range 0-3600000"),
        (b"DPUB t 1\n\0\0\0\0", State.INIT, "E_BAD_MESSAGE DPUB invalid message body size 0"),
        (b"DPUB t 1\n" + TOO_LARGE, State.INIT, "E_BAD_MESSAGE DPUB message too big 1048577 > 1048576"),
        (b"RDY 1\n", State.INIT, "E_INVALID cannot RDY in current state"),
        (b"RDY -1\n", State.SUBSCRIBED, "E_INVALID RDY could not parse count -1"),
        (b"RDY \n", State.SUBSCRIBED, "E_INVALID RDY could not parse count "),
        (b"RDY 2501\n", State.SUBSCRIBED, "E_INVALID RDY count 2501 out of range 0-2500"),
        (b"RDY " + b"9" * 4000 + b"\n", State.SUBSCRIBED, f"E_INVALID RDY could not parse count {'9' * 128}"),
        (b"FIN " + ID + b"\n", State.INIT, "E_INVALID cannot FIN in current state"),
        (b"FIN\n", State.SUBSCRIBED, "E_INVALID FIN insufficient number of params"),
        (b"FIN short\n", State.SUBSCRIBED, "E_INVALID invalid message ID"),
        (b"FIN " + ID + b"0\n", State.SUBSCRIBED, "E_INVALID invalid message ID"),
        (b"REQ " + ID + b" 1\n", State.INIT, "E_INVALID cannot REQ in current state"),
        (b"REQ " + ID + b"\n", State.SUBSCRIBED, "E_INVALID REQ insufficient number of params"),
        (b"REQ " + ID + b" -1\n", State.SUBSCRIBED, "E_INVALID REQ could not parse timeout -1"),
        (b"REQ short 1\n", State.SUBSCRIBED, "E_INVALID invalid message ID"),
        (b"TOUCH " + ID + b"\n", State.INIT, "E_INVALID cannot TOUCH in current state"),
        (b"TOUCH\n", State.SUBSCRIBED, "E_INVALID TOUCH insufficient number of params"),
        (b"CLS\n", State.INIT, "E_INVALID cannot CLS in current state"),
        (b"CLS\n", State.CLOSING, "E_INVALID cannot CLS in current state"),
    ],
)
def test_refusals(data: bytes, state: State, error: str) -> None:
    with pytest.raises(CommandError) as refused:
        read(data, state)
    assert f"{refused.value.nsq_code} {refused.value}" == error
    assert refused.value.fatal


def test_no_sub_without_heartbeats() -> None:
    with pytest.raises(CommandError, match="cannot SUB with heartbeats disabled"):
        read(b"SUB t c\n", heartbeats=False)


def test_where_tls_is_required_nothing_but_identify_is_heard() -> None:
    for data in (b"NOP\n", b"PUB t\n", b"HELP\n"):
        with pytest.raises(CommandError, match=r"in current state \(TLS required\)"):
            read(data, tls_missing=True)
    assert read(b"IDENTIFY\n\0\0\0\x02{}", tls_missing=True) is not None


def test_an_error_text_has_a_bound() -> None:
    with pytest.raises(CommandError, match="REQ error too big 65537 > 65536"):
        read(b"REQ " + ID + b" 0\n\0\x01\0\x01", State.SUBSCRIBED, extended=True)
    with pytest.raises(CommandError, match="REQ invalid error size -1"):
        read(b"REQ " + ID + b" 0\n\xff\xff\xff\xff", State.SUBSCRIBED, extended=True)


WORDS = [b"IDENTIFY", b"AUTH", b"SUB", b"PUB", b"MPUB", b"DPUB", b"RDY", b"FIN", b"REQ", b"TOUCH", b"CLS", b"NOP"]
lines = st.builds(
    lambda words, size, body: b" ".join(words) + b"\n" + struct.pack(">i", size) + body,
    st.lists(st.sampled_from([*WORDS, b"t", b"c", ID, b"5", b"", b"-1", b"\xff"]), min_size=1, max_size=5),
    st.integers(-3, 40),
    st.binary(max_size=40),
)


@settings(deadline=None)
@given(st.binary(max_size=100) | lines, st.sampled_from(list(State)), st.booleans())
def test_garbage_is_cut_refused_or_taken(data: bytes, state: State, extended: bool) -> None:
    try:
        command = read(data, state, extended=extended)
    except CommandError:
        return
    if command is not None:
        assert 0 < command.line_end <= command.start <= command.end <= len(data)
        assert command.name in WORDS


@settings(deadline=None)
@given(st.lists(lines, max_size=5), st.sampled_from(list(State)))
def test_bytes_one_by_one_are_the_same_commands(pieces: list[bytes], state: State) -> None:
    """Whatever comes in however many parts: it is judged the same."""
    data = bytearray(b"".join(pieces))

    def outcome(ends: list[int]) -> list[object]:
        made = codec(state)
        found: list[object] = []
        position = 0
        for end in ends:
            while True:
                try:
                    command = made.next(data, position, end)
                except CommandError as refused:
                    return [*found, str(refused)]
                if command is None:
                    break
                found.append(command)
                position = command.end
        return found

    assert outcome(list(range(len(data) + 1))) == outcome([len(data)])
