"""A driver of `logs` that is killed while it publishes.

python -m tests.pipeline.jobs.dying_logs BOOTSTRAP TOPIC INTO FOLDER WHERE
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Event
from typing import Any

from headrace.client import Client
from headrace.pipeline import sink_commit
from headrace.pipeline.sink_commit import CommitCoordinator, Note, OpenTransaction

BEFORE, WITHIN, BEHIND = "before the decision", "behind the decision", "behind the commit"


def job_of(
    address: str,
    topic: str,
    root: Path,
    *,
    into: str = "",
    application: str = "",
    data: str = "",
    window: int = 60,
    **options: Any,
) -> Any:
    """A job whose tasks run here, each of them twice."""
    from headrace.pipeline.jobs import rounds
    from headrace.pipeline.jobs.logs.counting import Windows
    from headrace.pipeline.jobs.logs.job import LogJob
    from headrace.pipeline.jobs.logs.lines import LineFormat
    from headrace.pipeline.jobs.publishing import Publisher

    def here(work: Callable[[Any], Any], tasks: Sequence[Any]) -> list[Any]:
        for each in tasks:
            work(each)
        return [work(each) for each in tasks]

    source = rounds.source_of([topic], "", address, data, {})
    windows = Windows(window * 1_000_000, 60_000_000)
    publisher = Publisher(address, into, application or f"logs-{into}") if into else None
    return LogJob(source, root, LineFormat(), windows, here, publisher=publisher, **options)


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    bootstrap, topic, into, root, where = sys.argv[1:]
    write = CommitCoordinator._write

    async def writing(self: CommitCoordinator, driver: Any, note: Note) -> None:
        if note.done == (where == BEHIND):
            die()
        await write(self, driver, note)

    async def ending(client: Client, transactions: Sequence[OpenTransaction]) -> list[OpenTransaction | None]:
        die()
        return []

    if where == WITHIN:
        sink_commit.commit = ending
    else:
        CommitCoordinator._write = writing  # type: ignore[method-assign]
    with job_of(bootstrap, topic, Path(root), into=into) as job:
        job.run(None, lambda _: None, Event())


if __name__ == "__main__":
    main()
