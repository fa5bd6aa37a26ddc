"""A driver of `logs` that is killed while it publishes.

python -m tests.pipeline.jobs.dying_logs BOOTSTRAP TOPIC INTO FOLDER WHERE
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from threading import Event
from typing import Any

from headrace.client import Client
from headrace.pipeline import sink_commit
from headrace.pipeline.sink_commit import CommitCoordinator, Note, OpenTransaction

BEFORE, WITHIN, BEHIND = "before the decision", "behind the decision", "behind the commit"


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    from tests.pipeline.jobs.log_batches import job_of

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
    job_of(bootstrap, topic, Path(root), into=into).run(None, lambda _: None, Event())


if __name__ == "__main__":
    main()
