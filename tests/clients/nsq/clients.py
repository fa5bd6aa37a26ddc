"""Four unchanged NSQ clients behind one shape, each in a process of its own that can be killed.

A client program takes one argument, the work in JSON. `{"do": "publish"}` publishes `bodies` to `topic` at `nsqd`,
`how` being `each`, `batch` or `defer` (by `defer_ms`). It says `{"published": N}` when all are acknowledged. `{"do":
"consume"}` subscribes `channel` at `nsqd`, or wherever `lookup` says, with `in_flight` messages at a time. It says a
line for each message (body, attempts, timestamp, id, and the time `at` which it came in ms), finishes it, and ends
after `count`. `first` is what it does to the first attempt of a message instead: `requeue` by `delay_ms`, `fail` (the
same, with the client's own backing off), `touch` for `hold_ms` and then finish, or `hang`. `tls_ca`, `snappy`,
`deflate`, `auth` and `msg_timeout_ms` go to the client's own settings. An error is said as `{"error": ...}` with exit
code 1.
"""

from __future__ import annotations

import json
import queue
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PATIENCE = 30.0


@dataclass(frozen=True)
class Message:
    """One delivery, as a client told it."""

    body: str
    attempts: int
    timestamp: int
    id: str
    at: int


class ClientFailed(Exception):
    """The client gave up, with its words."""


class Client:
    """A client program."""

    def __init__(self, name: str, command: Sequence[str], cwd: Path | None = None) -> None:
        self.name = name
        self._command = [*command]
        self._cwd = cwd

    def __repr__(self) -> str:
        return self.name

    def start(self, **work: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self._command, json.dumps(work)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self._cwd,
        )

    def publish(self, nsqd: str, topic: str, bodies: Sequence[str], how: str = "each", **more: Any) -> None:
        process = self.start(do="publish", nsqd=nsqd, topic=topic, bodies=list(bodies), how=how, **more)
        try:
            said, complaints = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            raise ClientFailed(f"{self.name} hangs: {process.communicate()[1][-2000:]}") from None
        told = json.loads(said.splitlines()[-1]) if said else {}
        if told.get("published") != len(bodies):
            raise ClientFailed(f"{self.name}: {told.get('error')} {complaints[-2000:]}")

    def consume(self, topic: str, channel: str, **work: Any) -> RunningConsumer:
        return RunningConsumer(self.start(do="consume", topic=topic, channel=channel, **work))

    def read(self, topic: str, channel: str, count: int, **work: Any) -> list[Message]:
        """Consume so many messages, and wait for the end of the client."""
        with self.consume(topic, channel, count=count, **work) as consuming:
            return consuming.rest()


class RunningConsumer:
    """A consumer that runs."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._complaints: list[str] = []
        assert process.stdout is not None
        assert process.stderr is not None
        out, complaints = process.stdout, process.stderr

        def read() -> None:
            for line in out:
                self._lines.put(line)
            self._lines.put(None)

        self._threads = [
            threading.Thread(target=read, daemon=True),
            threading.Thread(target=lambda: self._complaints.extend(complaints), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> RunningConsumer:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def complaints(self) -> str:
        return "".join(self._complaints)[-2000:]

    def next(self, seconds: float = PATIENCE) -> Message | None:
        """The next delivery; None at the client's end. Fails where nothing comes."""
        try:
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            raise AssertionError(f"no message came within {seconds} s: {self.complaints}") from None
        if line is None:
            return None
        told = json.loads(line)
        if "error" in told:
            raise ClientFailed(told["error"])
        return Message(**told)

    def take(self, count: int, seconds: float = PATIENCE) -> list[Message]:
        taken = []
        for _ in range(count):
            message = self.next(seconds)
            assert message is not None, f"the client ended after {len(taken)} of {count} messages: {self.complaints}"
            taken.append(message)
        return taken

    def silent(self, seconds: float) -> bool:
        """Whether nothing comes for so long."""
        try:
            self._lines.get(timeout=seconds)
        except queue.Empty:
            return True
        return False

    def rest(self) -> list[Message]:
        """All until the client ends by itself."""
        taken = []
        until = time.monotonic() + PATIENCE
        while (message := self.next(max(0.1, until - time.monotonic()))) is not None:
            taken.append(message)
        assert self._process.wait(PATIENCE) == 0, self.complaints
        return taken

    def drain(self) -> list[Message]:
        """Kill the client; all that it had told by then and was not taken yet."""
        self.kill()
        taken = []
        while (line := self._lines.get(timeout=PATIENCE)) is not None:
            # The kill may have cut the last line.
            if line.endswith("\n"):
                taken.append(Message(**json.loads(line)))
        return taken

    def kill(self) -> None:
        """End it as a crash would: no farewell to the broker."""
        self._process.kill()
        self._process.wait(PATIENCE)
        for thread in self._threads:
            thread.join(PATIENCE)
