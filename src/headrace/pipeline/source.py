"""The source `headrace`: topics as a table, or as a stream, in Spark.

Rows have the columns of Spark's own Kafka source. Spark loads this module in one process after another, to find the
source, to ask for its columns, to plan and to read, and a short query spends more on that than on records; so each of
them loads what it needs and nothing else. How reads are planned and done is in `readers`, and the sink in `sink`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from headrace.pipeline.columns import columns_of
from headrace.pipeline.options import InvalidOption, parse, parse_sink, parse_values

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

    from headrace.pipeline.decoded import Decoded

FILTERS_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"
SINK_WORKER = "pyspark.sql.worker.python_streaming_sink_runner"


class HeadraceSource(DataSource):
    """`format("headrace")`."""

    @classmethod
    def name(cls) -> str:
        return "headrace"

    def schema(self) -> str:
        return columns_of(parse_values(self.options), self._headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        from headrace.pipeline.readers import FilteringReader, Reader

        # Spark is about to push filters: then, and only then, it makes the reader in a worker for that alone.
        made = FilteringReader if _in_worker(FILTERS_WORKER) else Reader
        return made(parse(self.options, streaming=False), self._decoded(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 -- Spark's name
        from headrace.pipeline.readers import StreamReader

        return StreamReader(parse(self.options, streaming=True), self._decoded(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from headrace.pipeline.sink import BatchWriter

        _only_append(overwrite)
        return BatchWriter(parse_sink(self.options, streaming=False), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 -- Spark's name
        from headrace.pipeline.sink import StreamWriter

        _only_append(overwrite)
        writer = StreamWriter(parse_sink(self.options, streaming=True), schema)
        # Made to commit, it gets from the tasks what was found when the batch began.
        if not _in_worker(SINK_WORKER):
            writer.prepare()
        return writer

    @property
    def _headers(self) -> bool:
        return str(self.options.get("includeHeaders", "false")).lower() == "true"

    def _decoded(self, schema: StructType) -> Decoded | None:
        options = parse_values(self.options)
        if not options.schema:
            return None
        from headrace.pipeline.decoded import Decoded

        return Decoded.by(options, self._headers, schema)


def _in_worker(name: str) -> bool:
    """Whether this process is one of Spark's workers of this kind."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return name in sys.modules or getattr(main, "name", "") == name


def _only_append(overwrite: bool) -> None:
    if overwrite:
        raise InvalidOption("a topic cannot be overwritten: use mode append, or the output mode append or update")
