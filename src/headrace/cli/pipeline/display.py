"""How far a job has come, on standard error."""

from __future__ import annotations

import sys
import time


class Display:
    """One line that changes on a terminal, a line now and then elsewhere."""

    SECONDS = 10.0

    def __init__(self, job: str) -> None:
        self._job = job
        self._began = self._said = time.monotonic()
        self._words = ""

    def __enter__(self) -> Display:
        from rich.console import Console
        from rich.status import Status

        self._console = Console(stderr=True)
        self._status = Status(self._job, console=self._console)
        if self._console.is_terminal:
            self._status.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._status.stop()

    def show(self, rows: int, words: str) -> None:
        """`rows` are done so far; `words` say what else there is to say."""
        now = time.monotonic()
        line = f"{self._job}: {words}"
        if rows:
            line += f", {rows / max(now - self._began, 0.001):,.0f} rows/s"
        self._status.update(line)
        if not self._console.is_terminal and words != self._words and now - self._said >= self.SECONDS:
            self._said, self._words = now, words
            print(line, file=sys.stderr)
