"""The quotas that are set, as they are kept."""

from __future__ import annotations

from tests.broker.conftest import Starting
from tests.waiting import until

from headrace.broker.broker import Broker
from headrace.broker.quotas.entities import make_entity
from headrace.broker.quotas.filters import QuotaFilter
from headrace.broker.quotas.kinds import Kind
from headrace.broker.security import OWN, Session


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


async def test_a_node_that_follows_has_them_and_a_new_leader_too(start_broker: Starting) -> None:
    leader: Broker = await start_broker()
    follower = Broker(leader.runtime, leader.log, leader.config)
    await follower.follow()
    changes: list[int] = []
    follower.quotas.on_changed.append(lambda: changes.append(1))
    entity = make_entity([("user", "ann")])
    await leader.quota_book.alter(OWN, entity, {"producer_byte_rate": 5})
    await until(lambda: follower.quotas.is_active)
    assert changes
    assert follower.quotas.meter(Session(user="ann")) is not None
    await leader.quota_book.delete(OWN, entity)
    await until(lambda: not follower.quotas.is_active)
    await leader.quota_book.alter(OWN, entity, {"topics_max": 7})
    # It leads from now on.
    await follower.security.start()
    assert follower.quotas.table.of_user(Kind.TOPICS, "ann") == 7
    await follower.security.stop()
