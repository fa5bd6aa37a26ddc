from __future__ import annotations

import pytest

from headrace.format.message_id import encode_id
from headrace.inbox import InvalidId, message_id, nsq_message_id


@pytest.mark.parametrize(("partition", "offset"), [(0, 0), (3, 1 << 40), (131_071, (1 << 63) - 1)])
def test_every_delivery_of_a_message_has_its_id(partition: int, offset: int):
    deliveries = [encode_id(partition, offset, attempt) for attempt in (1, 2, 65_535)]
    assert {nsq_message_id("orders", each) for each in deliveries} == {message_id("orders", partition, offset)}
    assert nsq_message_id("orders", deliveries[0].decode()) == message_id("orders", partition, offset)


@pytest.mark.parametrize("delivery", [b"", b"short", b"0123456789abcde!", "é" * 8])
def test_what_is_no_delivery(delivery: bytes | str):
    with pytest.raises(InvalidId):
        nsq_message_id("orders", delivery)
