"""The pipeline's sink in front of a real Apache Kafka: what it passes on Headrace, it passes there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests import apache
from tests.pipeline import test_sink_commit as same
from tests.pipeline.topics import Topics

pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]

test_a_driver_that_dies_anywhere = same.test_a_driver_that_dies_anywhere_neither_loses_nor_repeats
test_a_driver_that_was_replaced = same.test_a_driver_that_was_replaced_decides_nothing
test_a_commit_that_fails_halfway = same.test_a_commit_that_fails_halfway_is_not_undone_by_the_abort_that_follows
test_a_batch_that_fails = same.test_a_batch_that_fails_leaves_nothing_open
test_a_timeout_before_the_decision = same.test_a_transaction_that_timed_out_before_the_decision_lets_the_batch_run_again
test_timeouts_behind_the_decision = same.test_transactions_that_timed_out_behind_the_decision


@pytest.fixture(scope="module")
def topics() -> Iterator[Topics]:
    with apache.running() as address:
        yield Topics(address)
