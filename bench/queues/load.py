"""The load generators of the queue benchmarks: `python -m bench.queues.load`, driven like `bench.load`."""

from __future__ import annotations

import select
import socket
import struct
import time

from bench.load import Result, Run, Spec, serve
from bench.queues.wires import STAMP_BYTES, TIMEOUT, WIRES, Wire

RECEIVE_BYTES = 1 << 20


def opened(spec: Spec, buffered: bool = True) -> Wire:
    return WIRES[spec["wire"]](spec["port"], buffered)


def receive(sock: socket.socket) -> bytes:
    data = sock.recv(RECEIVE_BYTES)
    if not data:
        raise ConnectionError("the server closed the connection")
    return data


class Publisher:
    """One connection with a full window of requests."""

    def __init__(self, spec: Spec) -> None:
        self.wire = opened(spec)
        self.sock = self.wire.sock
        self._each = spec["each"]
        self._window = spec["in_flight"]
        self._request = self.wire.publishes(spec["topic"], self._each)
        self._confirms = self.wire.confirms(self._each)
        self._unsent = b""
        self.sent = self.confirmed = 0

    def fill(self, most: int) -> int:
        """Send as many requests as the window and `most` allow; their messages."""
        count = min(self._window - (self.sent - self.confirmed) // self._each, most // self._each)
        if count > 0:
            self._unsent += self._request * count
            self.sent += count * self._each
        self.push()
        return max(0, count) * self._each

    def push(self) -> None:
        if self._unsent:
            try:
                self._unsent = self._unsent[self.sock.send(self._unsent) :]
            except BlockingIOError:
                pass

    @property
    def blocked(self) -> bool:
        return bool(self._unsent)

    def hear(self) -> int:
        count = self._confirms.feed(receive(self.sock))
        self.confirmed += count
        return count


def publish(spec: Spec) -> Run:
    """So many connections, `in_flight` requests of `each` messages on each, for `seconds` or until `count` messages."""
    if spec["connections"] == spec["in_flight"] == spec["each"] == 1:
        return one_at_a_time(spec)
    publishers = [Publisher(spec) for _ in range(spec["connections"])]

    def run() -> Result:
        poll = select.epoll()
        by_number = {each.sock.fileno(): each for each in publishers}
        left = spec.get("count") or 1 << 62
        until = time.monotonic() + spec.get("seconds", 3600.0)
        for each in publishers:
            each.sock.setblocking(False)
            poll.register(each.sock.fileno(), select.EPOLLIN)
            left -= each.fill(left)
            if each.blocked:
                poll.modify(each.sock.fileno(), select.EPOLLIN | select.EPOLLOUT)
        while any(each.confirmed < each.sent for each in publishers):
            events = poll.poll(TIMEOUT)
            if not events:
                raise TimeoutError(f"no confirmation came within {TIMEOUT} s")
            for number, event in events:
                each = by_number[number]
                was = each.blocked
                if event & ~select.EPOLLOUT:
                    each.hear()
                if left and time.monotonic() < until:
                    left -= each.fill(left)
                else:
                    each.push()
                if each.blocked != was:
                    poll.modify(number, select.EPOLLIN | (select.EPOLLOUT if each.blocked else 0))
        return {"messages": sum(each.confirmed for each in publishers)}

    return run


def one_at_a_time(spec: Spec) -> Run:
    """The next message is sent when the last is confirmed."""
    wire = opened(spec)
    request = wire.publishes(spec["topic"], 1)
    confirms = wire.confirms(1)

    def run() -> Result:
        until = time.monotonic() + spec["seconds"]
        done = 0
        while time.monotonic() < until:
            wire.sock.send(request)
            while not confirms.feed(receive(wire.sock)):
                pass
            done += 1
        return {"messages": done}

    return run


def consume(spec: Spec) -> Run:
    """So many consumers with so much credit each, until `count` deliveries came to all of them together."""
    wires = [opened(spec) for _ in range(spec["connections"])]
    subscriptions = [wire.subscribe(spec["topic"], spec.get("requeue", False)) for wire in wires]

    def run() -> Result:
        poll = select.epoll()
        by_number = {wire.sock.fileno(): each for each, wire in enumerate(wires)}
        got = [0] * len(wires)
        for wire in wires:
            wire.ready(spec["credit"])
        for wire in wires:
            poll.register(wire.sock.fileno(), select.EPOLLIN)
        left = spec["count"]
        while left > 0:
            events = poll.poll(TIMEOUT)
            if not events:
                raise TimeoutError(f"no message came within {TIMEOUT} s, {left} are missing")
            for number, _ in events:
                each = by_number[number]
                count, answers = subscriptions[each].feed(receive(wires[each].sock))
                if count:
                    # Credit bounds what is under way, and a socket's buffer holds the answers to that.
                    wires[each].sock.sendall(answers)
                    got[each] += count
                    left -= count
        for wire in wires:
            wire.leave()
        return {
            "messages": sum(got),
            "by_consumer": got,
            "redelivered": sum(each.redelivered for each in subscriptions),
        }

    return run


def paced_publish(spec: Spec) -> Run:
    """One message every so many microseconds, stamped, and sent on time whether or not the last one was confirmed."""
    wire = opened(spec)
    request = bytearray(wire.publishes(spec["topic"], 1))
    at = wire.stamp_at(spec["topic"])
    confirms = wire.confirms(1)
    gap, count = int(1e9 / spec["rate"]), int(spec["rate"] * spec["seconds"])

    def run() -> Result:
        wire.sock.setblocking(False)
        confirmed = 0
        due = time.monotonic_ns() + gap
        for _ in range(count):
            wait = due - time.monotonic_ns()
            if wait > 0:
                time.sleep(wait / 1e9)
            struct.pack_into(">Q", request, at, time.monotonic_ns())
            if wire.sock.send(request) != len(request):
                raise RuntimeError("the server does not keep up with the pace")
            due += gap
            try:
                confirmed += confirms.feed(receive(wire.sock))
            except BlockingIOError:
                pass
        wire.sock.settimeout(TIMEOUT)
        while confirmed < count:
            confirmed += confirms.feed(receive(wire.sock))
        return {"messages": count}

    return run


def timed_consume(spec: Spec) -> Run:
    """How long each stamped message took to come, in nanoseconds."""
    wire = opened(spec, buffered=False)
    subscription = wire.subscribe(spec["topic"])
    wire.ready(spec["credit"])

    def run() -> Result:
        taken: list[int] = []
        size, at = subscription.frame_bytes, subscription.body_at
        while len(taken) < spec["count"]:
            data = receive(wire.sock)
            now = time.monotonic_ns()
            count, answers = subscription.feed(data)
            wire.sock.sendall(answers)
            for each in range(count):
                begin = each * size + at
                taken.append(now - int.from_bytes(subscription.held[begin : begin + STAMP_BYTES]))
        wire.leave()
        return {"taken": taken, "redelivered": subscription.redelivered}

    return run


KINDS = {
    "publish": publish,
    "consume": consume,
    "paced_publish": paced_publish,
    "timed_consume": timed_consume,
}

if __name__ == "__main__":
    serve(KINDS)
