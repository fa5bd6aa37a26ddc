"""Files that tasks write aside, for the driver to commit (`manifest.py`)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow.parquet as pq

from headrace.pipeline.manifest import StagedFile, sync


def staged(root: Path, path: Path, folder: str, rows: int) -> StagedFile:
    """A file that was written aside, durable."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
    sync(path.parent)
    return StagedFile(str(path.relative_to(root)), folder, "", rows, path.stat().st_size)


def stage(root: Path, staging: Path, folder: str, table: Any) -> StagedFile:
    """A table as a file aside."""
    path = staging / f"{uuid4().hex}.parquet"
    pq.write_table(table, path, compression="zstd")
    return staged(root, path, folder, table.num_rows)
