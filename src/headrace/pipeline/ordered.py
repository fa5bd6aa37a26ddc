"""The records of a range in the order of their offsets, wherever they come from.

A broker and a data folder have them so. An archive has them by the hour of their times: there, a stretch of offsets at
a time is read, from whichever files have some of it, and sorted.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace

import pyarrow as pa

from headrace.pipeline.options import SourceOptions
from headrace.pipeline.origin import Range, is_archive
from headrace.pipeline.range_reader import read_range

STRETCH = 200_000


def read_in_order(options: SourceOptions, wanted: Range) -> Generator[pa.RecordBatch, None, None]:
    """Blocks of some megabytes, one behind the other."""
    if not is_archive(options):
        yield from read_range(options, wanted)
        return
    for start in range(wanted.start, wanted.end, STRETCH):
        stretch = replace(wanted, start=start, end=min(start + STRETCH, wanted.end))
        blocks = list(read_range(options, stretch))
        if blocks:
            yield from pa.Table.from_batches(blocks).sort_by("offset").combine_chunks().to_batches()
