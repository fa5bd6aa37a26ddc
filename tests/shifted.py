"""The loop's clock, put forward by the test: what takes a minute is over at once, and a machine that stands still for
some seconds does not make it come too early."""

from __future__ import annotations

import asyncio

import pytest


class Shifted:
    """The clock of the running loop, until the test is over."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loop = asyncio.get_running_loop()
        time = loop.time
        self._ahead = 0.0
        monkeypatch.setattr(loop, "time", lambda: time() + self._ahead)

    def forward(self, seconds: float) -> None:
        """So much time has passed."""
        self._ahead += seconds
