"""Unchanged Kafka clients of other languages behind one shape, each in a process of its own.

A client program takes one argument, the work in JSON, at the broker `broker`. `{"do": "produce"}` sends `messages`
(key, value, headers, partition; null where there is none), their values repeated `times` times, to `topic` with
`compression`, `acks`, `idempotent`, and in one transaction of `transactional_id`, which `abort` aborts. It says
`{"produced": N}` when all are acknowledged. `{"do": "stream"}` (Go's clients) sends numbers to `topic`, in turn to each
of its `partitions`, one by one and idempotently, until it is asked to end, and says a line for each that is
acknowledged. `{"do": "consume"}` reads `topic`, or with `pattern` all topics that fit
it, from the beginning as a member of `group`; with `committed` what is committed. It says a line for each message,
commits, and leaves after `count` messages or when it is asked to end; with `patient` (Go's) it logs errors and goes on.
`{"do": "administer"}` makes `topic`
with two partitions and a setting, looks at it, its records and the offsets of `group`, and deletes them; it says what
it saw. An error is said as `{"error": ...}` with exit code 1.
"""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PATIENCE = 40.0


@dataclass(frozen=True)
class Message:
    """One message, sent or read."""

    value: str | None
    key: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    partition: int = 0
    offset: int = -1


class ClientFailed(Exception):
    """The client gave up, with its words."""


class Client:
    """A client program."""

    def __init__(self, name: str, command: Sequence[str], codecs: Sequence[str], cwd: Path | None = None) -> None:
        self.name = name
        self.codecs = codecs
        """The compressions that it has."""
        self._command = [*command]
        self._cwd = cwd

    def __repr__(self) -> str:
        return self.name

    def __call__(self, **work: Any) -> list[dict[str, Any]]:
        """Run to the end; all that it said."""
        command = [*self._command, json.dumps(work)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, cwd=self._cwd, timeout=PATIENCE, check=False)
        except subprocess.TimeoutExpired as error:
            raise ClientFailed(f"{self.name} hangs: {error.stdout!r} {error.stderr!r}") from None
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        if done.returncode:
            raise ClientFailed(f"{self.name}: {lines[-1]['error'] if lines else ''} {done.stderr[-2000:]}")
        return lines

    def produce(self, broker: str, topic: str, messages: Sequence[Message], **more: Any) -> None:
        sent = [
            {"key": each.key, "value": each.value, "headers": each.headers, "partition": each.partition}
            for each in messages
        ]
        assert self(do="produce", broker=broker, topic=topic, messages=sent, **more) == [{"produced": len(messages)}]

    def consume(self, broker: str, topic: str, count: int, **more: Any) -> list[Message]:
        return [Message(**line) for line in self(do="consume", broker=broker, topic=topic, count=count, **more)]

    def reading(self, said: Path, **work: Any) -> RunningClient:
        """Begin to consume, until it is stopped; it writes to the file `said`."""
        return self._run(said, do="consume", count=1 << 30, **work)

    def streaming(self, said: Path, **work: Any) -> RunningClient:
        """Begin to send numbers, until it is stopped; what is acknowledged is in the file `said`."""
        return self._run(said, do="stream", **work)

    def _run(self, said: Path, **work: Any) -> RunningClient:
        with said.open("w") as out:
            command = [*self._command, json.dumps(work)]
            return RunningClient(subprocess.Popen(command, stdout=out, cwd=self._cwd), said)


class RunningClient:
    """A client that runs until it is stopped."""

    def __init__(self, process: subprocess.Popen[bytes], said: Path) -> None:
        self._process = process
        self._said = said

    def __enter__(self) -> RunningClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(PATIENCE)

    def found(self) -> list[Message]:
        """All that it told by now."""
        # It may be in the middle of a line.
        whole = self._said.read_text().rpartition("\n")[0]
        return [Message(**json.loads(line)) for line in whole.splitlines()]

    def stop(self) -> None:
        """Have it leave the group."""
        self._process.send_signal(signal.SIGTERM)
        assert self._process.wait(PATIENCE) == 0, self._said.read_text()[-2000:]
