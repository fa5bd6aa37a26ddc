"""Frames: byte for byte as RocketMQ's own classes write them, both ways, and garbage."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.doors.rocketmq.vectors import VECTORS

from headrace.doors.rocketmq import frames
from headrace.doors.rocketmq.frames import BINARY, HEAD, JSON, LANGUAGES, ONE_WAY, RESPONSE, Command, Malformed

GO = LANGUAGES.index("GO")
COMMANDS = {
    "request": Command(105, 77, 0, {"topic": "orders é"}, version=0),
    "answer": Command(17, -5, RESPONSE, body=b"\0\1\xff", remark='no "route"\n here', language=GO, version=0),
    "oneway": Command(40, 1, ONE_WAY, version=0),
}

numbers = st.integers(-(1 << 31), (1 << 31) - 1)
texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
commands = st.builds(
    Command,
    code=st.integers(-(1 << 15), (1 << 15) - 1),
    opaque=numbers,
    flag=numbers,
    fields=st.dictionaries(texts, texts, max_size=4),
    body=st.binary(max_size=40),
    remark=st.none() | texts.filter(bool),
    language=st.integers(0, len(LANGUAGES) - 1),
    version=st.integers(0, (1 << 15) - 1),
    serialization=st.sampled_from((JSON, BINARY)),
)


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize(("kind", "serialization"), [("JSON", JSON), ("ROCKETMQ", BINARY)])
def test_frames_are_rocketmqs(kind: str, serialization: int, name: str) -> None:
    command, frame = replace(COMMANDS[name], serialization=serialization), bytes.fromhex(VECTORS[f"{kind}.{name}"])
    assert frames.encode(command) == frame
    assert frames.decode(frame) == command


def test_answers_carry_the_version_of_the_rocketmq_that_is_spoken() -> None:
    assert int(VECTORS["version"]) == frames.VERSION


@given(commands)
def test_a_command_comes_back(command: Command) -> None:
    frame = frames.encode(command)
    assert HEAD.unpack_from(frame)[0] == len(frame) - 4
    assert frames.decode(frame) == command


@given(st.binary(max_size=80), st.sampled_from((JSON, BINARY, 2)))
def test_garbage_is_malformed_or_a_command(garbage: bytes, kind: int) -> None:
    frame = HEAD.pack(4 + len(garbage), kind << 24 | len(garbage)) + garbage
    try:
        assert isinstance(frames.decode(frame), Command)
    except Malformed:
        pass


@given(commands, st.data())
def test_a_frame_with_a_changed_byte_is_malformed_or_a_command(command: Command, data: st.DataObject) -> None:
    frame = bytearray(frames.encode(command))
    frame[data.draw(st.integers(4, len(frame) - 1))] = data.draw(st.integers(0, 255))
    try:
        assert isinstance(frames.decode(bytes(frame)), Command)
    except Malformed:
        pass


@pytest.mark.parametrize(
    "header",
    [
        b"[]",
        b"{",
        b'{"code":"1"}',
        b'{"code":4294967296}',
        b'{"code":1,"extFields":[1]}',
        b'{"code":1,"extFields":{"a":[]}}',
        b'{"code":true}',
        b"[" * 100_000,
    ],
)
def test_headers_of_json_that_are_none(header: bytes) -> None:
    with pytest.raises(Malformed):
        frames.decode(HEAD.pack(4 + len(header), len(header)) + header)


def test_a_header_longer_than_its_frame() -> None:
    with pytest.raises(Malformed, match="a header of 100 bytes in a frame of 10"):
        frames.decode(HEAD.pack(6, 100) + b"{}")
