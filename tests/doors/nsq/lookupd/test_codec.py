from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.doors.nsq.errors import CommandError
from headrace.doors.nsq.lookupd.codec import (
    BODY_MAX_BYTES,
    LENGTH,
    LINE_MAX_BYTES,
    Codec,
    Command,
    answer,
)


def commands(data: bytes, step: int = 1) -> list[Command]:
    codec = Codec()
    found = []
    for at in range(0, len(data), step):
        codec.feed(data[at : at + step])
        while (command := codec.next_command()) is not None:
            found.append(command)
    return found


@pytest.mark.parametrize("step", [1, 3, 1000])
def test_commands_in_pieces(step):
    body = b'{"a":\n1}'
    data = b"  V1IDENTIFY\n" + LENGTH.pack(len(body)) + body + b"PING\r\nREGISTER topic channel\nUNREGISTER topic\n"
    assert commands(data, step) == [
        Command("IDENTIFY", [], body),
        Command("PING", []),
        Command("REGISTER", ["topic", "channel"]),
        Command("UNREGISTER", ["topic"]),
    ]


def test_an_answer_stands_behind_its_length():
    assert answer(b"OK") == b"\x00\x00\x00\x02OK"


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"  V2PING\n", "E_BAD_PROTOCOL"),
        (b"GET / HTTP/1.1", "E_BAD_PROTOCOL"),
        (b"  V1" + b"x" * LINE_MAX_BYTES, "E_INVALID"),
        (b"  V1IDENTIFY\n\xff\xff\xff\xff", "E_BAD_BODY"),
        (b"  V1IDENTIFY\n" + LENGTH.pack(BODY_MAX_BYTES + 1), "E_BAD_BODY"),
    ],
)
def test_what_is_refused(data, code):
    with pytest.raises(CommandError) as raised:
        commands(data)
    assert raised.value.nsq_code == code


PIECES = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([b"PING\n", b"REGISTER t c\n", b"IDENTIFY\n", b"\x00\x00\x00\x02{}", b"\n", b" ", b"UNREGISTER\n"]),
)


@given(st.lists(PIECES), st.booleans())
def test_any_bytes_give_commands_or_a_refusal_and_little_is_kept(pieces, begin):
    codec = Codec()
    if begin:
        codec.feed(b"  V1")
    for piece in pieces:
        codec.feed(piece)
        try:
            while (command := codec.next_command()) is not None:
                assert not {" ", "\n"} & set(command.name)
        except CommandError:
            return
        assert len(codec._buffer) <= max(LINE_MAX_BYTES, BODY_MAX_BYTES + 4)
