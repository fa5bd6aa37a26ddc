"""The source `headrace`: topics as a table, or as a stream, in Spark.

Rows have the columns of Spark's own Kafka source. Spark loads this module in one process after another, to find the
source, to ask for its columns, to plan and to read, and a short query spends more on that than on records; so each of
them loads what it needs and nothing else. How reads are planned and done is in `readers`, and the sink in `sink`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from headrace.pipeline.columns import build_ddl, select_columns
from headrace.pipeline.option_values import InvalidOption
from headrace.pipeline.options import ColumnSelection, parse, parse_sink, parse_table_sink, parse_values

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

    from headrace.pipeline.value_columns import ValueColumns

FILTERS_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"
SINK_WORKER = "pyspark.sql.worker.python_streaming_sink_runner"


class HeadraceSource(DataSource):
    """`format("headrace")`."""

    @classmethod
    def name(cls) -> str:
        return "headrace"

    def schema(self) -> str:
        if "provider" in self.options:
            raise InvalidOption(
                "Spark keeps the options of a table from sources that are written in Python, so there can be no table: "
                "CREATE TEMPORARY VIEW ... USING headrace OPTIONS (...) makes a view of a topic"
            )
        return build_ddl(parse_values(self.options), self._headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        from headrace.pipeline.readers import FilteringReader, Reader

        options = parse(self.options, streaming=False)
        # Spark is about to push filters: then, and only then, it makes the reader in a worker for that alone. It keeps
        # what was planned for them with the frame that was loaded, and takes it for every later query of that frame and
        # for both sides of a union; so filters are taken only where the option promises that there is one query.
        made = FilteringReader if options.push_filters and _in_worker(FILTERS_WORKER) else Reader
        return made(options, *self._columns(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 -- Spark's name
        from headrace.pipeline.readers import StreamReader

        return StreamReader(parse(self.options, streaming=True, bounded=True), *self._columns(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from headrace.pipeline.sink import BatchWriter

        if overwrite:
            raise InvalidOption("a topic cannot be overwritten: use the mode append")
        return BatchWriter(parse_sink(self.options, streaming=False), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 -- Spark's name
        if "path" in self.options:
            return self._table_writer(schema, overwrite)
        from headrace.pipeline.sink import StreamWriter

        # The output mode complete has each batch overwrite the one before: by the same keys, as in Spark's own sink.
        writer = StreamWriter(parse_sink(self.options, streaming=True), schema)
        # Made to commit, it gets from the tasks what was found when the batch began.
        if not _in_worker(SINK_WORKER):
            writer.prepare()
        return writer

    def _table_writer(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from headrace.pipeline.table_sink import TableWriter

        if overwrite:
            raise InvalidOption("a table is appended to: use the output mode append")
        writer = TableWriter(parse_table_sink(self.options), schema)
        if not _in_worker(SINK_WORKER):
            writer.prepare()
        return writer

    @property
    def _headers(self) -> bool:
        return str(self.options.get("includeHeaders", "false")).lower() == "true"

    def _columns(self, schema: StructType) -> tuple[ValueColumns | None, ColumnSelection | None]:
        """What the columns that Spark wants are made of: values that are decoded, or records as they are."""
        options = parse_values(self.options)
        if not options.json:
            return None, select_columns(options, self._headers, schema)
        from headrace.pipeline.value_columns import ValueColumns

        return ValueColumns.from_schema(options, self._headers, schema), None


def _in_worker(name: str) -> bool:
    """Whether this process is one of Spark's workers of this kind."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return name in sys.modules or getattr(main, "name", "") == name
