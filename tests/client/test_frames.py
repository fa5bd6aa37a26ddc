"""Large frames: whole and in order, in memory that is theirs for as long as somebody looks at it."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from headrace.client.frames import SPARE_BYTES_MAX, WAKE_BYTES, LargeFrames


class Watched:
    """A transport over a socket that notes what it was told."""

    def __init__(self, sslcontext: object = None) -> None:
        self.told: list[int] = []
        self._sslcontext = sslcontext

    def get_extra_info(self, name: str) -> Any:
        return {"socket": self, "sslcontext": self._sslcontext}[name]

    def setsockopt(self, level: int, option: int, value: int) -> None:
        assert (level, option) == (socket.SOL_SOCKET, socket.SO_RCVLOWAT)
        self.told.append(value)


def receive(frames: LargeFrames, content: bytes, pieces: int = 3) -> memoryview:
    first = len(content) // (pieces + 1)
    frames.begin(len(content), memoryview(content)[:first])
    frame = None
    while frame is None:
        at = len(content) - frames.left
        count = min(frames.left, first + 1)
        frames.rest[:count] = content[at : at + count]
        frame = frames.fill(count)
    assert frames.left == 0
    return frame


def test_a_frame_comes_in_pieces() -> None:
    content = bytes(range(256)) * 2000
    assert bytes(receive(LargeFrames(), content, pieces=7)) == content


def test_memory_is_used_again_once_nobody_looks_at_it() -> None:
    frames = LargeFrames()
    first = receive(frames, b"a" * 500_000)
    piece, place = first[100:200], id(first.obj)
    second = receive(frames, b"b" * 500_000)
    assert id(second.obj) != place
    del first
    # A piece is enough.
    assert id(receive(frames, b"c" * 500_000).obj) != place
    assert bytes(piece) == b"a" * 100
    del piece
    assert id(receive(frames, b"d" * 499_000).obj) == place
    assert bytes(second) == b"b" * 500_000


def test_frames_that_are_all_kept_are_all_their_own() -> None:
    frames = LargeFrames()
    kept = [receive(frames, bytes([number]) * 300_000) for number in range(12)]
    assert [bytes(each) for each in kept] == [bytes([number]) * 300_000 for number in range(12)]


def test_what_is_very_large_is_not_kept() -> None:
    frames = LargeFrames()
    receive(frames, bytes(SPARE_BYTES_MAX + 1))
    assert frames._spares == []


@pytest.mark.skipif(not hasattr(socket, "SO_RCVLOWAT"), reason="the system has no such option")
def test_the_loop_wakes_when_much_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    watched = Watched()
    frames = LargeFrames()
    frames.arrive_by(watched)  # type: ignore[arg-type]
    frames.begin(3 * WAKE_BYTES, memoryview(bytes(10)))
    frames.fill(WAKE_BYTES)
    frames.fill(WAKE_BYTES + 100)
    frames.fill(frames.left - 1)
    frames.fill(1)
    # Never more than is missing: nothing would come behind it.
    assert watched.told == [WAKE_BYTES, WAKE_BYTES - 110, 1]


def test_what_is_encrypted_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    watched = Watched(sslcontext=object())
    frames = LargeFrames()
    frames.arrive_by(watched)  # type: ignore[arg-type]
    frames.begin(3 * WAKE_BYTES, memoryview(bytes(10)))
    assert watched.told == []
