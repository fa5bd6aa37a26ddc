"""What a person sees of `headrace subscribe` on a terminal: one line for each URL, below the log."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text

from headrace.webhooks.endpoint import Verdict

if TYPE_CHECKING:
    from headrace.webhooks.pusher import Webhooks

PER_SECOND = 2
# A rate is that of the last so many seconds.
SPAN_SECONDS = 5.0


class Line:
    """The lines, while they are entered. What is written to standard error meanwhile stands above them."""

    def __init__(self, console: Console | None = None) -> None:
        self._webhooks: Webhooks | None = None
        self._seen: list[tuple[float, list[int]]] = []
        self._live = Live(self, console=console or Console(stderr=True), refresh_per_second=PER_SECOND, transient=True)

    def follow(self, webhooks: Webhooks) -> None:
        self._webhooks = webhooks

    def __enter__(self) -> Line:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self._webhooks is None:
            return
        now = time.monotonic()
        taken = [pusher.figures.messages[Verdict.TAKEN] for pusher in self._webhooks.pushers]
        self._seen = [each for each in self._seen if now - each[0] < SPAN_SECONDS] + [(now, taken)]
        first, before = self._seen[0]
        for pusher, count, was in zip(self._webhooks.pushers, taken, before, strict=True):
            figures = pusher.figures
            rate = (count - was) / (now - first) if now > first else 0.0
            failed = figures.messages[Verdict.FAILING] + figures.messages[Verdict.DOWN]
            state, style = "pushing", "green"
            if pusher.gone:
                state, style = "gone", "red"
            elif figures.waits:
                state, style = "waiting for the endpoint", "yellow"
            yield Text.assemble(
                (f"{self._webhooks.topic} -> {pusher.endpoint.shown} ", "bold"),
                (state, style),
                f": {count:,} taken, {rate:,.0f}/s, {failed:,} failed, {figures.messages[Verdict.REFUSED]:,} refused",
            )
