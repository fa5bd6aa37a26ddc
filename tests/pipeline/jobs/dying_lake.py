"""`headrace pipeline lake` that stands still around the next commit of each table, until it is killed.

    MARKS=FOLDER python -m tests.pipeline.jobs.dying_lake FLAGS...

It does so once the folder has a file `armed`: the folder of Parquet files has not got the batch yet, the other tables
have it, and Spark knows of none. The folder gets a file for each.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from headrace.cli import main
from headrace.pipeline import tables
from headrace.pipeline.manifest import ParquetFolder

MARKS = Path(os.environ["MARKS"])
ARMED = "armed"


def stand_still(query: str) -> None:
    (MARKS / query).touch()
    while True:
        time.sleep(1)


def stopping(commit: Any) -> Any:
    def around(table: Any, query: str, *batch: Any) -> Any:
        armed = (MARKS / ARMED).exists()
        if armed and isinstance(table, ParquetFolder):
            stand_still(query)
        state = commit(table, query, *batch)
        if armed:
            stand_still(query)
        return state

    return around


if __name__ == "__main__":
    tables.commit = stopping(tables.commit)
    main()
