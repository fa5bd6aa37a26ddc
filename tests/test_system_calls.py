"""What the kernel saw: no reply to a `sync` produce before the write of its records has reached the device; and how
little a reader asks of it who goes on from where it was.

The broker runs under strace. Each request carries a word of its own, so the trace tells when the word came in on a
socket, when it was written to a file, when that file's sync returned, and when the next bytes went out on that socket.
One request is under way on each connection, and several connections share each flush.
"""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from bench import requests
from bench.load import receive
from confluent_kafka.admin import AdminClient, NewTopic
from tests.serve_process import ServeProcess

from headrace.format import records

CONNECTIONS = 4
WRITES = ("pwritev2", "pwritev", "pwrite64", "write", "writev", "sendto", "sendmsg", "sendfile")
READS = ("read", "readv", "recvfrom", "recvmsg")
SYNCS = ("fdatasync", "fsync")
CALLS = ",".join((*WRITES, *READS, *SYNCS))
# Words are looked for in the calls' arguments, which strace cuts off beyond so many bytes: a flush of one batch from
# each connection must fit.
SHOWN = 4096


@pytest.fixture(scope="module")
def strace() -> str:
    found = shutil.which("strace")
    if found is None:
        pytest.skip("there is no strace")
    tried = subprocess.run([found, "-o", "/dev/null", "true"], capture_output=True, text=True, timeout=30, check=False)
    if tried.returncode:
        pytest.skip(f"strace may not trace here: {tried.stderr.strip()}")
    return found


@dataclass
class Call:
    """A system call: the lines of the trace in which it began and ended, and what they show."""

    name: str
    number: int
    """The descriptor."""
    began: int
    ended: int
    words: str


def calls(trace: str) -> Iterator[Call]:
    """The calls of a trace in the order in which they began."""
    unfinished: dict[str, Call] = {}
    made = []
    for line, text in enumerate(trace.splitlines()):
        process, _, rest = text.partition(" ")
        rest = rest.strip()
        if resumed := re.match(r"<\.\.\. (\w+) resumed>", rest):
            if call := unfinished.pop(process, None):
                assert call.name == resumed[1]
                call.ended = line
                call.words += rest
        elif begun := re.match(r"(\w+)\((\d+)", rest):
            call = Call(begun[1], int(begun[2]), line, line, rest)
            made.append(call)
            if rest.endswith("<unfinished ...>"):
                call.ended = -1
                unfinished[process] = call
    yield from (call for call in made if call.ended >= 0)


def produce_words(address: str, topic: str, count: int, padding: int) -> list[str]:
    """Send requests with a word each over several connections at once; the words that were acknowledged."""
    host, _, port = address.rpartition(":")
    acknowledged: list[str] = []

    def talk(connection: int) -> None:
        with socket.create_connection((host, int(port)), timeout=30) as sock:
            for number in range(count):
                word = f"word-{connection}-{number:04d}-"
                value = word.encode() + bytes(padding)
                batch = records.build([(int(time.time() * 1000), None, value, [])])
                sock.sendall(requests.produce(topic, [(0, bytes(batch))]))
                assert len(sock.recv(4096)) > 20
                acknowledged.append(word)

    threads = [threading.Thread(target=talk, args=(connection,)) for connection in range(CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return acknowledged


def check_replies_come_after_syncs(trace: str, words: list[str]) -> None:
    """Each word: read from a socket, written, synced; and only then is anything sent on that socket."""
    made = list(calls(trace))
    for word in words:
        came = next(call for call in made if call.name in READS and word in call.words)
        after = [call for call in made if call.began > came.began]
        replied = next(call for call in after if call.name in WRITES and call.number == came.number)
        written = next(call for call in after if call.name in WRITES and word in call.words)
        synced = (
            written
            if "RWF_DSYNC" in written.words
            else next(
                call
                for call in after
                if call.name in SYNCS and call.number == written.number and call.began > written.ended
            )
        )
        assert "= -1" not in synced.words
        assert synced.ended < replied.began, (
            f"{word} was answered in line {replied.began}, before its sync returned in line {synced.ended}"
        )


def traced(strace: str, folder: Path, durability: str, count: int, padding: int) -> tuple[str, list[str]]:
    trace = folder / "trace"
    # -D: the broker is this test's child and strace its grandchild, so that signals reach the broker.
    under = (strace, "-D", "-f", "-q", "-s", str(SHOWN), "-e", f"trace={CALLS}", "-o", str(trace))
    with ServeProcess(folder / "data", "--durability", durability, under=under) as broker:
        admin = AdminClient({"bootstrap.servers": broker.kafka, "log_level": 0})
        admin.create_topics([NewTopic("words", 1)])["words"].result(30)
        words = produce_words(broker.kafka, "words", count, padding)
        broker.stop()
    assert len(words) == CONNECTIONS * count
    return trace.read_text(), words


@pytest.mark.parametrize(("padding", "where"), [(100, "the journal"), (200_000, "the segment")])
def test_sync_replies_wait_for_the_device(strace: str, tmp_path: Path, padding: int, where: str) -> None:
    trace, words = traced(strace, tmp_path, "sync", 20, padding)
    check_replies_come_after_syncs(trace, words)


def test_the_check_sees_a_reply_that_did_not_wait(strace: str, tmp_path: Path) -> None:
    trace, words = traced(strace, tmp_path, "async", 5, 100)
    with pytest.raises((AssertionError, StopIteration)):
        check_replies_come_after_syncs(trace, words)


FETCHED = ("pread64", "preadv2", "preadv", "futex", "sendfile")
REPLIES = 30


def produce_and_follow(address: str, topic: str) -> int:
    """Fill a partition with batches of 128 KiB, and read them in replies of 1 MiB; how many that took."""
    host, _, port = address.rpartition(":")
    made, count = requests.batch(1 << 17)
    with socket.create_connection((host, int(port)), timeout=30) as sock:
        buffer = memoryview(bytearray(2 * requests.MIB))
        for _ in range(8 * REPLIES):
            sock.sendall(requests.produce(topic, [(0, made)]))
            receive(sock, buffer)
        asked = requests.fetch(topic, [0], max_wait_ms=500)
        replies = at = 0
        while at < 8 * REPLIES * count:
            asked.move(0, at)
            sock.sendall(asked.frame)
            [(_, begin, end)] = requests.fetched(receive(sock, buffer))
            # Whole batches and nothing else.
            assert (end - begin) % len(made) == 0
            at += (end - begin) // len(made) * count
            replies += 1
    return replies


@pytest.mark.parametrize("segment_bytes", [1 << 30, 10 << 20], ids=["the newest segment", "closed segments"])
def test_a_reader_that_goes_on_costs_few_calls(strace: str, tmp_path: Path, segment_bytes: int) -> None:
    """One sendfile for each reply, and one look at the file; no other thread, and nothing looked up, but where a
    segment begins."""
    trace = tmp_path / "trace"
    under = (strace, "-D", "-f", "-q", "-e", f"trace={','.join(FETCHED)}", "-o", str(trace))
    with ServeProcess(tmp_path / "data", "--durability", "async", "--tail-bytes", "1", under=under) as broker:
        admin = AdminClient({"bootstrap.servers": broker.kafka, "log_level": 0})
        settings = {"segment.bytes": str(segment_bytes)}
        admin.create_topics([NewTopic("rain", 1, config=settings)])["rain"].result(30)
        replies = produce_and_follow(broker.kafka, "rain")
        broker.stop()
    names = [call.name for call in calls(trace.read_text())]
    first = names.index("sendfile")
    last = len(names) - names[::-1].index("sendfile")
    seen = Counter(names[first:last])
    segments = 1 + 8 * REPLIES * (1 << 17) // segment_bytes
    assert replies <= REPLIES + segments
    assert seen["sendfile"] >= replies
    assert seen["pread64"] + seen["preadv2"] + seen["preadv"] <= replies + 5 * segments
    assert seen["futex"] <= 10 * segments
