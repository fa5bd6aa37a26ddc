"""The peer protocol: what is sent arrives, in pieces of any size, and what is no message is refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cluster import json_messages
from headrace.cluster.changes import new_group
from headrace.cluster.json_messages import PeerProtocolError
from headrace.cluster.wire import (
    HELLO,
    LENGTH,
    OPENING_MAX_BYTES,
    REPORT,
    Acknowledgement,
    Caller,
    Decoder,
    FollowerState,
    Frame,
    Heartbeat,
    Hello,
    Inquiry,
    Message,
    Refusal,
    Report,
    Welcome,
    encode,
)
from headrace.log.group_frames import Position

FRAME_MAX = OPENING_MAX_BYTES

numbers = st.integers(0, (1 << 64) - 1)
positions = st.lists(st.builds(Position, numbers, numbers), max_size=5).map(tuple)
callers = st.builds(Caller, numbers, numbers, st.text(), st.text(), numbers, st.text(), numbers, numbers)
followers = st.lists(st.builds(FollowerState, numbers, numbers, numbers, st.none() | numbers), max_size=2).map(tuple)
reports = st.builds(
    Report,
    st.text(),
    numbers,
    st.text(),
    numbers,
    st.text(),
    numbers,
    st.booleans(),
    st.booleans(),
    numbers,
    st.builds(Position, numbers, numbers),
    numbers,
    st.just(new_group([1, 2])),
    followers,
)
messages = st.one_of(
    st.builds(Hello, callers, positions),
    st.builds(Welcome, numbers, numbers, numbers),
    st.builds(Refusal, st.text(), numbers),
    st.builds(Frame, st.binary(max_size=300)),
    st.builds(Acknowledgement, numbers, st.integers(-(1 << 63), (1 << 63) - 1), st.none() | numbers),
    st.builds(Inquiry),
    reports,
    st.builds(Heartbeat, numbers, numbers, numbers, numbers),
)


@given(st.lists(messages, max_size=6), st.integers(1, 50))
def test_what_is_sent_arrives_in_pieces_of_any_size(sent: list[Message], piece: int) -> None:
    stream = b"".join(map(encode, sent))
    decoder = Decoder(FRAME_MAX)
    found: list[Message] = []
    for at in range(0, len(stream), piece):
        found += decoder.feed(stream[at : at + piece])
    assert found == sent


@given(st.binary(max_size=200))
def test_garbage_is_refused_in_words_or_waited_for(data: bytes) -> None:
    try:
        list(Decoder(FRAME_MAX).feed(data))
    except PeerProtocolError as error:
        assert str(error)  # noqa: PT017


@pytest.mark.parametrize("length", [0, FRAME_MAX + 2, (1 << 32) - 1])
def test_a_length_that_cannot_be_is_refused_before_it_is_waited_for(length: int) -> None:
    with pytest.raises(PeerProtocolError, match=str(length)):
        list(Decoder(FRAME_MAX).feed(LENGTH.pack(length, HELLO)))


def test_the_largest_frame_arrives() -> None:
    frame = Frame(bytes(FRAME_MAX))
    assert list(Decoder(FRAME_MAX).feed(encode(frame))) == [frame]


CALLER = {
    "oldest": 1, "newest": 1, "cluster": "c", "group": "g", "node": 4, "directory": "d", "starts": 1, "epoch": 2
}  # fmt: skip
HELLO_FIELDS = {"caller": CALLER, "ends": [[1, 2]]}


@pytest.mark.parametrize(
    "change",
    [
        *({"ends": wrong} for wrong in ([[1]], 3, [["a", "b"]])),
        *({"caller": CALLER | wrong} for wrong in ({"epoch": "2"}, {"cluster": 4}, {"starts": True})),
        {"caller": 3},
        {"caller": {}},
    ],
)
def test_an_opening_with_a_wrong_field_is_refused(change: dict[str, object]) -> None:
    body = json.dumps(HELLO_FIELDS | change).encode()
    with pytest.raises(PeerProtocolError, match="Hello"):
        list(Decoder(FRAME_MAX).feed(LENGTH.pack(1 + len(body), HELLO) + body))


def test_a_report_with_a_record_that_cannot_be_is_refused() -> None:
    seen = json.loads(new_group([1]).encode()) | {"min_isr": 0}
    body = json.dumps({"seen": seen}).encode()
    with pytest.raises(PeerProtocolError, match="Report"):
        list(Decoder(FRAME_MAX).feed(LENGTH.pack(1 + len(body), REPORT) + body))


def test_an_opening_of_a_later_version_can_be_read() -> None:
    body = json.dumps(HELLO_FIELDS | {"caller": CALLER | {"newest": 9, "more": True}, "more": True}).encode()
    [hello] = Decoder(FRAME_MAX).feed(LENGTH.pack(1 + len(body), HELLO) + body)
    assert isinstance(hello, Hello)
    assert (hello.caller.newest, hello.ends) == (9, (Position(1, 2),))


def test_what_an_earlier_version_does_not_say_has_its_default() -> None:
    body = json.dumps({"reason": "no", "epoch": 3}).encode()
    assert json_messages.read(Refusal, body, {}) == Refusal("no", 3)
