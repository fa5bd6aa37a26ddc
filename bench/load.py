"""The load generator: one process, raw sockets, requests built before the clock starts.

`python -m bench.load` reads one line of JSON (the kind of load and its parameters), connects, builds, prints `ready`,
waits for a line, and answers with one line of JSON. So the runner can read the server's CPU time exactly before and
after. The generator's own CPU time is in the answer: where it comes near to the wall time, the rate is the generator's
and not the server's.
"""

from __future__ import annotations

import json
import select
import socket
import sys
import threading
import time
from collections.abc import Callable
from itertools import cycle, islice
from typing import Any

from bench import requests, scram
from headrace.runtime.sendfile import without_pacing

Spec = dict[str, Any]
Result = dict[str, Any]
Run = Callable[[], Result]

TIMEOUT = 60
LENGTH = 4


def connect(spec: Spec) -> socket.socket:
    made = socket.create_connection((spec["host"], spec["port"]), timeout=TIMEOUT)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # A timer for every packet of the generator would interrupt the server as often as the generator, at its expense.
    without_pacing(made)
    if "user" in spec:
        scram.login(made, spec["user"], spec["password"])
    return made


def receive(sock: socket.socket, view: memoryview) -> memoryview:
    """One reply, without its length prefix."""
    have = 0
    size = LENGTH
    while have < LENGTH + size or have < LENGTH:
        got = sock.recv_into(view[have:])
        if not got:
            raise ConnectionError("the server closed the connection")
        have += got
        if have >= LENGTH:
            size = int.from_bytes(view[:LENGTH])
    return view[LENGTH : LENGTH + size]


def in_threads(work: list[Callable[[], None]]) -> None:
    """Run all at once; raises the first error of any."""
    failures: list[BaseException] = []

    def guarded(each: Callable[[], None]) -> None:
        try:
            each()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(each,)) for each in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def bulk_produce(spec: Spec) -> Run:
    """Large requests over a few connections, some in flight on each, like a producer with much to say."""
    made, count = requests.batch(spec["batch_bytes"])
    connections, in_flight = spec["connections"], spec["in_flight"]
    each = max(1, spec["total_bytes"] // (len(made) * spec["partitions_each"] * connections))
    # Every connection goes round groups of partitions of its own.
    groups = [
        list(range(begin, begin + spec["partitions_each"]))
        for begin in range(0, spec["partitions"], spec["partitions_each"])
    ]
    sockets = [connect(spec) for _ in range(connections)]
    work = []
    for number, sock in enumerate(sockets):
        mine = groups[number % len(groups) :: connections] or [groups[number % len(groups)]]
        frames = [requests.produce(spec["topic"], [(partition, made) for partition in group]) for group in mine]

        def one(sock: socket.socket = sock, frames: list[bytes] = frames) -> None:
            view = memoryview(bytearray(1 << 16))
            waiting = pending = 0
            for frame in islice(cycle(frames), each):
                if waiting == in_flight:
                    pending = drain(sock, view, pending, 1)
                    waiting -= 1
                sock.sendall(frame)
                waiting += 1
            drain(sock, view, pending, waiting)

        work.append(one)

    def run() -> Result:
        in_threads(work)
        sent = each * connections * spec["partitions_each"]
        return {"bytes": sent * len(made), "appended": sent * count, "requests": each * connections}

    return run


def drain(sock: socket.socket, view: memoryview, have: int, replies: int) -> int:
    """Take so many replies off the socket; the bytes of the next one that came along stay at the view's beginning."""
    while replies:
        size = LENGTH + int.from_bytes(view[:LENGTH]) if have >= LENGTH else 0
        if size and have >= size:
            view[: have - size] = bytes(view[size:have])
            have -= size
            replies -= 1
            continue
        got = sock.recv_into(view[have:])
        if not got:
            raise ConnectionError("the server closed the connection")
        have += got
    return have


def bulk_fetch(spec: Spec) -> Run:
    """Read a topic of equal batches from beginning to end, once, as large replies."""
    made, count = requests.batch(spec["batch_bytes"])
    ends = {int(partition): end for partition, end in spec["ends"].items()}
    shares = [sorted(ends)[number :: spec["connections"]] for number in range(spec["connections"])]
    totals = [0] * len(shares)
    work = []
    for number, (share, sock) in enumerate((share, connect(spec)) for share in shares):
        buffer = memoryview(bytearray(requests.MIB * (len(share) + 1)))

        def one(
            number: int = number, share: list[int] = share, sock: socket.socket = sock, buffer: Any = buffer
        ) -> None:
            at = dict.fromkeys(share, 0)
            left = share
            while left:
                asked = requests.fetch(spec["topic"], left, max_wait_ms=500)
                for index, partition in enumerate(left):
                    asked.move(index, at[partition])
                # The request changes only when a partition has been read to its end.
                while all(at[partition] < ends[partition] for partition in left):
                    sock.sendall(asked.frame)
                    for partition, begin, end in requests.fetched(receive(sock, buffer)):
                        whole = (end - begin) // len(made)
                        totals[number] += whole * len(made)
                        at[partition] += whole * count
                        asked.move(left.index(partition), at[partition])
                left = [partition for partition in left if at[partition] < ends[partition]]

        work.append(one)

    def run() -> Result:
        in_threads(work)
        return {"bytes": sum(totals)}

    return run


def small_produce(spec: Spec) -> Run:
    """Requests with one record each: so many connections, so many requests in flight on each, for so many seconds.

    With `rotate`, each request goes to the next partition of all; otherwise a connection stays with one.
    """
    connections, in_flight, partitions = spec["connections"], spec["in_flight"], spec["partitions"]
    frames = one_each(spec)
    sockets = [connect(spec) for _ in range(connections)]
    rings = []
    for number in range(connections):
        if spec["rotate"]:
            begin = number * partitions // connections
            rings.append(frames[begin:] + frames[:begin])
        else:
            rings.append([frames[number % partitions]])
    return over_and_over(sockets, rings, in_flight, spec["seconds"])


def small_fetch(spec: Spec) -> Run:
    """Fetches of the one record of a topic."""
    frame = bytes(requests.fetch(spec["topic"], [0], max_wait_ms=0, partition_bytes=4_096).frame)
    sockets = [connect(spec) for _ in range(spec["connections"])]
    return over_and_over(sockets, [[frame] for _ in sockets], 1, spec["seconds"])


def over_and_over(sockets: list[socket.socket], rings: list[list[bytes]], in_flight: int, seconds: float) -> Run:
    """Send requests whose replies are all of one size, which the first of each connection shows."""
    reply_bytes = 0
    for sock, ring in zip(sockets, rings, strict=True):
        sock.sendall(ring[0])
        reply_bytes = LENGTH + len(receive(sock, memoryview(bytearray(1 << 16))))
    if len(sockets) == in_flight == 1:
        return lambda: one_at_a_time(sockets[0], rings[0], seconds, reply_bytes)
    return lambda: many(sockets, rings, in_flight, seconds, reply_bytes)


def one_each(spec: Spec) -> list[bytes]:
    """A request with one record for every partition."""
    made, _ = requests.batch(1)
    names, width = spec["topics"], spec["partitions"] // len(spec["topics"])
    return [requests.produce(names[each // width], [(each % width, made)]) for each in range(spec["partitions"])]


def touch(spec: Spec) -> Run:
    """One record to every partition."""
    sock = connect(spec)
    frames = one_each(spec)

    def run() -> Result:
        view = memoryview(bytearray(1 << 16))
        for frame in frames:
            sock.sendall(frame)
            receive(sock, view)
        return {"requests": len(frames), "appended": len(frames)}

    return run


def one_at_a_time(sock: socket.socket, ring: list[bytes], seconds: float, reply_bytes: int) -> Result:
    view = memoryview(bytearray(1 << 16))
    until = time.monotonic() + seconds
    for done, frame in enumerate(cycle(ring), 1):
        sock.send(frame)
        got = sock.recv_into(view)
        while 0 < got < reply_bytes:
            got += sock.recv_into(view[got:])
        if got != reply_bytes:
            raise ConnectionError(f"a reply of {got} bytes came, {reply_bytes} were expected")
        if time.monotonic() > until:
            return {"requests": done, "appended": done + 1}
    raise AssertionError("a ring has no end")


def many(
    sockets: list[socket.socket], rings: list[list[bytes]], in_flight: int, seconds: float, reply_bytes: int
) -> Result:
    """A full window on each connection; each burst of replies is answered with as many requests in one send."""
    poll = select.epoll()
    by_number = {}
    for sock, ring in zip(sockets, rings, strict=True):
        sock.setblocking(False)
        poll.register(sock.fileno(), select.EPOLLIN)
        # A ring that is long enough for any slice of a window.
        by_number[sock.fileno()] = [sock, ring * -(-in_flight // len(ring)) + ring[: in_flight - 1], len(ring), 0, 0]
    until = time.monotonic() + seconds
    done = waiting = 0
    for state in by_number.values():
        send(state, in_flight)
        waiting += in_flight
    view = memoryview(bytearray(1 << 20))
    while waiting:
        events = poll.poll(TIMEOUT)
        if not events:
            raise TimeoutError(f"no reply came within {TIMEOUT} s")
        for number, _ in events:
            state = by_number[number]
            got = state[0].recv_into(view)
            if not got:
                raise ConnectionError("the server closed the connection")
            replies, state[4] = divmod(state[4] + got, reply_bytes)
            if not replies:
                continue
            done += replies
            waiting -= replies
            if until:
                send(state, replies)
                waiting += replies
        if until and time.monotonic() > until:
            until = 0.0
    return {"requests": done, "appended": done + len(sockets)}


def send(state: list[Any], count: int) -> None:
    sock, ring, length, position, _ = state
    burst = ring[position] if count == 1 else b"".join(ring[position : position + count])
    if sock.send(burst) != len(burst):
        raise RuntimeError("the socket's send buffer is full: the window is too large for it")
    state[3] = (position + count) % length


def paced_produce(spec: Spec) -> Run:
    """One record every so many microseconds, sent on time whether or not the last one was acknowledged."""
    made, _ = requests.batch(1)
    frame = requests.produce(spec["topic"], [(0, made)])
    sock = connect(spec)
    gap, count = int(1e9 / spec["rate"]), int(spec["rate"] * spec["seconds"])
    sock.sendall(frame)
    reply_bytes = LENGTH + len(receive(sock, memoryview(bytearray(1 << 16))))

    def run() -> Result:
        view = memoryview(bytearray(1 << 20))
        sock.setblocking(False)
        sent = []
        got = 0
        due = time.monotonic_ns() + gap
        for _ in range(count):
            wait = due - time.monotonic_ns()
            if wait > 0:
                time.sleep(wait / 1e9)
            sent.append(time.monotonic_ns())
            if sock.send(frame) != len(frame):
                raise RuntimeError("the server does not keep up with the pace")
            due += gap
            try:
                got += sock.recv_into(view)
            except BlockingIOError:
                pass
        sock.setblocking(True)
        while got < count * reply_bytes:
            got += sock.recv_into(view)
        return {"requests": count, "appended": count + 1, "times": sent}

    return run


def tail_consume(spec: Spec) -> Run:
    """Long polls at the end of a partition; the time at which each record came."""
    sock = connect(spec)
    asked = requests.fetch(spec["topic"], [0], max_wait_ms=500)
    buffer = memoryview(bytearray(2 * requests.MIB))

    def run() -> Result:
        came: list[int] = []
        base = at = spec["from"]
        while at - base < spec["count"]:
            asked.move(0, at)
            sock.sendall(asked.frame)
            reply = receive(sock, buffer)
            now = time.monotonic_ns()
            for _, begin, end in requests.fetched(reply):
                while end - begin >= 61:
                    offset = int.from_bytes(reply[begin : begin + 8])
                    last = offset + int.from_bytes(reply[begin + 23 : begin + 27])
                    came += [now] * (last + 1 - at)
                    at = last + 1
                    begin += 12 + int.from_bytes(reply[begin + 8 : begin + 12])
        return {"times": came}

    return run


KINDS: dict[str, Callable[[Spec], Run]] = {
    "bulk_produce": bulk_produce,
    "bulk_fetch": bulk_fetch,
    "small_produce": small_produce,
    "small_fetch": small_fetch,
    "touch": touch,
    "paced_produce": paced_produce,
    "tail_consume": tail_consume,
}


def serve(kinds: dict[str, Callable[[Spec], Run]]) -> None:
    """One load of these kinds, as the runner asks for it on the standard input."""
    spec = json.loads(sys.stdin.readline())
    run = kinds[spec["kind"]](spec)
    print("ready", flush=True)
    sys.stdin.readline()
    cpu, begin = time.process_time(), time.monotonic()
    result = run()
    result["seconds"] = time.monotonic() - begin
    result["generator_cpu"] = time.process_time() - cpu
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    serve(KINDS)
