"""What /debug/pprof/ has for a broker that is not written in Go: what its tasks and threads are doing, and how it was
started, as far as that is no secret. Profiles are left to tools that attach to a Python process."""

from __future__ import annotations

import asyncio
import io
import sys
import traceback
from collections.abc import Mapping, Sequence

from headrace.doors.http.server.messages import HttpError, Request

# Of the tasks, how many are shown with their stacks.
TASKS_MAX = 1_000
INDEX = """/debug/pprof/cmdline    how the broker was started
/debug/pprof/goroutine  the stacks of its tasks and threads
"""


async def debug(command_line: Sequence[str], request: Request, parameters: Mapping[str, str]) -> object:
    """The page that is asked for."""
    page = parameters["page"]
    if not page:
        return INDEX
    if page == "cmdline":
        # Not the process's own: its flags may be another program's, and hold secrets of it.
        return "\0".join(command_line)
    if page == "goroutine":
        return _stacks()
    raise HttpError(404, "NOT_FOUND")


def _stacks() -> str:
    out = io.StringIO()
    tasks = sorted(asyncio.all_tasks(), key=lambda task: task.get_name())
    out.write(f"{len(tasks)} tasks\n")
    for task in tasks[:TASKS_MAX]:
        out.write("\n")
        task.print_stack(file=out)
    frames = sys._current_frames()
    out.write(f"\n{len(frames)} threads\n")
    for number, frame in frames.items():
        out.write(f"\nthread {number}\n")
        out.writelines(traceback.format_stack(frame))
    return out.getvalue()
