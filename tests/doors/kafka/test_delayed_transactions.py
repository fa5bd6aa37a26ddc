"""Transactions on a topic with `delay=true`: a record that asks to be delivered later is refused, others are not."""

from __future__ import annotations

from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode
from tests.doors.kafka.test_transactions import (
    FIRST,
    PRODUCE,
    SECOND,
    TRANSACTIONAL,
    TransactionalClient,
    fetched,
    stage,
)

from headrace.format import records


@pytest.mark.parametrize("generation", [FIRST, SECOND])
async def test_a_record_of_a_transaction_cannot_be_delayed(tmp_path: Path, generation: int) -> None:
    async with stage(tmp_path) as (door, wire, _):
        topic = await door.broker.topics.create("later", 1, {"delay": "true"})
        producer = TransactionalClient(wire, generation)
        assert await producer.init() is ErrorCode.none
        await producer.write(topic, 0, b"now")
        now = door.broker.runtime.clock.now_ms()
        for due, answer in ((now + 3_600_000, ErrorCode.invalid_record), (now - 1_000, ErrorCode.none)):
            batch = records.build(
                [(now, None, b"due", [("headrace-deliver-at", b"%d" % due)])],
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                base_sequence=1,
                attributes=TRANSACTIONAL,
            )
            reply = await wire.produce(PRODUCE[generation], topic, bytes(batch), 0, transactional_id=producer.name)
            assert ErrorCode(reply.error_code) is answer
            if answer is not ErrorCode.none:
                assert "outside of transactions" in reply.error_message
        assert door.broker.timer.pending == 0
        assert await producer.end(True) is ErrorCode.none
        assert (await fetched(wire, topic))[0] == [b"now", b"due"]
