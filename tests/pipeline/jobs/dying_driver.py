"""A driver of `archive` that is killed where it hurts.

    python -m tests.pipeline.jobs.dying_driver BOOTSTRAP TOPIC FOLDER WHERE

Its tasks fail once each, behind their work, before they are let through.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.pipeline import manifest
from headrace.pipeline.jobs import archive as module
from headrace.pipeline.jobs.archive import Archiver, Writing
from headrace.pipeline.origin import Range
from headrace.pipeline.session import session


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class FailingOnce(Writing):
    def __call__(self, ranges: Sequence[Range]) -> list[manifest.StagedFile]:
        done = super().__call__(ranges)
        seen = Path(self.staging) / f"seen-{ranges[0].partition}-{ranges[0].start}"
        if not seen.exists():
            seen.touch()
            raise RuntimeError("the first attempt of every task fails")
        return done


def main() -> None:
    from tests.pipeline.conftest import SETTINGS

    bootstrap, topic, to, where = sys.argv[1:]
    sys.modules["headrace.pipeline.jobs.archive"].Writing = FailingOnce  # type: ignore[attr-defined]
    if where == "before the commit":
        manifest.Manifest.commit = die  # type: ignore[assignment, method-assign]
    elif where == "after the commit":
        manifest.Manifest._finish = die  # type: ignore[assignment, method-assign]
    else:
        Archiver._follow = die  # type: ignore[assignment, method-assign]
    module(session("dying", "local[2,3]", SETTINGS), to=to, topics=[topic], bootstrap=bootstrap, file_bytes=80_000)


if __name__ == "__main__":
    main()
