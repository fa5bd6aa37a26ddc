"""The progress of a job, on standard error."""

from __future__ import annotations

import sys
import time


class Display:
    """One line that changes on a terminal; a line every ten seconds elsewhere."""

    SECONDS = 10.0

    def __init__(self, job: str) -> None:
        self._job = job
        self._began = self._printed = time.monotonic()
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
        """Show the rows done so far, and other counts in words."""
        now = time.monotonic()
        line = f"{self._job}: {words}"
        if rows:
            line += f", {rows / max(now - self._began, 0.001):,.0f} rows/s"
        self._status.update(line)
        if not self._console.is_terminal and words != self._words and now - self._printed >= self.SECONDS:
            self._printed, self._words = now, words
            print(line, file=sys.stderr)
