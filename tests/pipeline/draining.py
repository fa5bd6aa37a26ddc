"""A stream run until nothing is left of what there was."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import StreamingQuery


def drain(stream: DataFrame, folder: Path) -> StreamingQuery:
    """Everything that is available, as files in `out` of a folder; where it got to stands in `checkpoint`."""
    query = (
        stream.writeStream.format("parquet")
        .option("path", str(folder / "out"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    return query
