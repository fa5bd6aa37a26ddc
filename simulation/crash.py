"""The end of a simulated process.

A crash must leave the loop at once, through every callback and task between. asyncio lets only `KeyboardInterrupt` and
`SystemExit` pass; everything else it turns into the result of a task or a log line. So a crash is a `SystemExit`.
"""

from __future__ import annotations


class Crash(SystemExit):
    """The process is gone. `point` says where: the operation and the kind of file."""

    def __init__(self, point: str) -> None:
        super().__init__(point)
        self.point = point


class PowerCut(Crash):
    """The machine went dark: what was not synced may be lost."""


class Killed(Crash):
    """The process got SIGKILL: the operating system still has everything that was written."""
