"""Source, sink and `archive` in front of a real Apache Kafka: what they pass on Headrace, they pass there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests import apache
from tests.pipeline import test_batch as batch
from tests.pipeline import test_sink as sink
from tests.pipeline import test_stream as stream
from tests.pipeline.jobs import test_tables as tables
from tests.pipeline.topics import Topics

pytestmark = [pytest.mark.java, pytest.mark.timeout(400)]

test_rows = batch.test_rows_are_those_of_sparks_own_source
test_from_and_to = batch.test_from_and_to_offsets_times_and_groups
test_filters = batch.test_filters_on_offset_and_time_reach_the_log
test_finer_partitions = batch.test_finer_partitions_read_the_same_rows_once
test_what_retention_took = batch.test_what_retention_took_is_said_or_skipped
test_a_stream = stream.test_a_stream_takes_each_record_once_over_restarts
test_partitions_that_come_later = stream.test_partitions_that_come_later_are_read_from_their_beginning
test_a_frame_is_written = sink.test_a_frame_is_written_by_its_columns
test_a_stream_is_written_once = sink.test_a_stream_is_written_once_over_restarts
test_an_archive = tables.test_records_are_filed_by_topic_date_and_hour
test_an_archive_whose_job_dies = tables.test_a_job_that_dies_anywhere_neither_loses_nor_repeats


@pytest.fixture(scope="module")
def topics() -> Iterator[Topics]:
    with apache.running() as address:
        yield Topics(address)
