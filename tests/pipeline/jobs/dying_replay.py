"""A driver of `replay` that is killed in its second round.

python -m tests.pipeline.jobs.dying_replay BOOTSTRAP TOPIC INTO WHERE
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

from tests.pipeline.jobs.dying_logs import BEHIND, WITHIN

from headrace.client import Client
from headrace.pipeline import sink_commit
from headrace.pipeline.sink_commit import CommitCoordinator, Note, OpenTransaction


def replay_here(**options: Any) -> Any:
    """A replay whose tasks run here."""
    from headrace.pipeline.jobs import replay, rounds
    from headrace.pipeline.jobs.replay.runner import Runner

    def here(spark: object, work: Callable[[Any], Any], tasks: Sequence[Any]) -> list[Any]:
        return [work(each) for each in tasks]

    rounds.on_spark = here  # type: ignore[assignment]
    Runner._slots = lambda self: 1  # type: ignore[method-assign]
    return replay(None, **options)  # type: ignore[arg-type]


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    bootstrap, topic, into, where = sys.argv[1:]
    write, commit = CommitCoordinator._write, sink_commit.commit

    async def writing(self: CommitCoordinator, driver: Any, note: Note) -> None:
        if note.batch == 1 and note.done == (where == BEHIND):
            die()
        await write(self, driver, note)

    ended = 0

    async def ending(client: Client, transactions: Sequence[OpenTransaction]) -> list[OpenTransaction | None]:
        nonlocal ended
        ended += 1
        if ended == 2:
            # One of the round's transactions, and no other.
            await commit(client, transactions[:1])
            die()
        return await commit(client, transactions)

    if where == WITHIN:
        sink_commit.commit = ending
    else:
        CommitCoordinator._write = writing  # type: ignore[method-assign]
    replay_here(topics=[topic], bootstrap=bootstrap, into=into, application=f"replay-{into}", round_rows=100)


if __name__ == "__main__":
    main()
