"""The quotas that are set, as they are kept."""

from __future__ import annotations

from tests.broker.conftest import Starting

from headrace.broker.quotas.entities import make_entity
from headrace.broker.quotas.filters import QuotaFilter
from headrace.broker.security import OWN


async def test_quotas_survive_a_restart(start_broker: Starting) -> None:
    broker = await start_broker()
    entity = make_entity([("user", "ann"), ("client-id", None)])
    await broker.quota_book.alter(OWN, entity, {"producer_byte_rate": 5, "request_percentage": 0.5})
    gone = make_entity([("ip", "::1")])
    await broker.quota_book.alter(OWN, gone, {"connections_max": 0})
    assert await broker.quota_book.delete(OWN, gone)
    assert not await broker.quota_book.delete(OWN, gone)
    before = broker.quota_book.find(OWN, QuotaFilter())
    broker = await start_broker()
    assert broker.quota_book.find(OWN, QuotaFilter()) == before
    assert broker.quotas.table.entities == before
    assert broker.quotas.is_active
