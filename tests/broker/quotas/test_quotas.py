"""The engine without doors: rates over time, what is shared, what is kept, what a change changes."""

from __future__ import annotations

import gc
import random

import pytest

from headrace.broker.quota_settings import QuotaSettings
from headrace.broker.quotas import Quotas
from headrace.broker.quotas.entities import make_entity
from headrace.broker.quotas.kinds import EntityType, Kind, check_value, kind_of
from headrace.broker.quotas.quotas import MUTATION_BURST_SECONDS
from headrace.broker.security import OWN, Session
from headrace.errors import InvalidQuota, QuotaExceeded

ANN, BEN = Session(user="ann", client_id="web"), Session(user="ben", client_id="web")
USER_ANN = make_entity([("user", "ann")])
DEFAULT_USER = make_entity([("user", None)])
DEFAULT_CLIENT = make_entity([("client-id", None)])


def quotas(**settings: int) -> Quotas:
    return Quotas(QuotaSettings(**settings))


def test_without_quotas_there_is_no_meter() -> None:
    engine = quotas()
    assert not engine.is_active
    assert engine.meter(ANN) is None
    engine.apply(USER_ANN, {Kind.TOPICS: 3})
    assert not engine.is_active, "a bound is no rate"
    engine.apply(USER_ANN, {Kind.PRODUCE: 10})
    assert engine.is_active
    assert engine.meter(ANN) is not None
    assert engine.meter(BEN) is None
    assert engine.meter(OWN) is None
    engine.apply(USER_ANN, {})
    assert not engine.is_active


@pytest.mark.parametrize("seed", range(5))
def test_the_rate_holds_in_the_long_run(seed: int) -> None:
    """A client that sends whatever it may, as soon as it may, with requests of any size."""
    engine = quotas()
    engine.apply(USER_ANN, {Kind.PRODUCE: 1_000})
    meter = engine.meter(ANN)
    assert meter is not None
    chance = random.Random(seed)
    now, sent = 5.0, 0
    while now < 505.0:
        size = chance.randint(1, 5_000)
        sent += size
        now += meter.produced(size, now) + chance.random() / 1000
    # A second's worth is let through at once, and the last request may be waited for still.
    assert 0.98 * 500_000 <= sent <= 1.02 * 500_000 + 6_000


def test_no_wait_is_longer_than_the_bound() -> None:
    engine = quotas(quota_throttle_max_ms=2_500)
    engine.apply(USER_ANN, {Kind.PRODUCE: 10})
    meter = engine.meter(ANN)
    assert meter is not None
    assert meter.produced(10, 1.0) == 0.0
    assert meter.produced(25, 1.0) == 2.5
    assert meter.produced(1_000_000, 1.0) == 2.5
    assert (engine.figures[Kind.PRODUCE].throttled, engine.figures[Kind.PRODUCE].seconds) == (2, 5.0)


def test_a_quota_of_a_user_is_shared_and_a_default_is_each_ones_own() -> None:
    engine = quotas()
    engine.apply(DEFAULT_USER, {Kind.PRODUCE: 100})
    other = Session(user="ann", client_id="app")
    assert _produced(engine, ANN, 100) == 0
    assert _produced(engine, other, 50) == 0.5, "the same user"
    assert _produced(engine, BEN, 100) == 0
    engine.apply(DEFAULT_USER, {})
    engine.apply(DEFAULT_CLIENT, {Kind.PRODUCE: 100})
    assert _produced(engine, ANN, 100) == 0
    assert _produced(engine, BEN, 50) == 0.5, "the same client id"
    assert _produced(engine, other, 100) == 0


def test_clients_without_a_name_are_one() -> None:
    engine = quotas(quota_produce_bytes=100)
    assert _produced(engine, Session(), 100) == 0
    assert _produced(engine, Session(host="10.0.0.1"), 100) == 1


def test_a_change_holds_at_once_and_keeps_what_others_have_used() -> None:
    engine = quotas()
    changes: list[int] = []
    engine.on_changed.append(lambda: changes.append(1))
    engine.apply(DEFAULT_USER, {Kind.PRODUCE: 100})
    assert _produced(engine, ANN, 300) == 2
    engine.apply(make_entity([("user", "ben")]), {Kind.PRODUCE: 1})
    assert _produced(engine, ANN, 100) == 3, "a quota of another user"
    engine.apply(USER_ANN, {Kind.PRODUCE: 1_000})
    assert _produced(engine, ANN, 1_000) == 0
    assert len(changes) == 3


def test_the_use_of_so_many_clients_is_kept() -> None:
    engine = quotas(quota_clients_max=3, quota_produce_bytes=100)

    def come(name: str) -> float:
        waited = _produced(engine, Session(client_id=name), 200)
        gc.collect()
        return waited

    assert [come(name) for name in "abc"] == [1, 1, 1]
    assert come("a") == 3, "kept"
    assert come("d") == 1
    assert engine.tracked == 3
    assert come("a") == 1, "forgotten, as the oldest"
    # One whose connection keeps its meter is found again, however many have come since.
    meter = engine.meter(Session(client_id="busy"))
    assert meter is not None
    assert meter.produced(200, 1.0) == 1
    for number in range(20):
        come(str(number))
    assert engine.tracked == 3
    assert come("busy") == 3


def test_what_is_refused_is_not_counted() -> None:
    engine = quotas()
    engine.apply(USER_ANN, {Kind.PRODUCE: 100, Kind.CONSUME: 100})
    meter = engine.meter(ANN)
    assert meter is not None
    meter.take_produce(300, 1.0)
    for _ in range(3):
        with pytest.raises(QuotaExceeded, match=r"producer_byte_rate is used up. Try again in 2.0 seconds") as caught:
            meter.take_produce(50, 1.0)
    assert caught.value.seconds == 2
    meter.take_produce(50, 3.0)
    meter.take_consume(1.0)
    assert meter.consumed(200, 1.0) == 1
    with pytest.raises(QuotaExceeded):
        meter.take_consume(1.9)
    meter.take_consume(2.0)
    assert engine.figures[Kind.PRODUCE].refused == 3


def test_mutations_have_kafkas_burst() -> None:
    engine = quotas()
    engine.apply(USER_ANN, {Kind.MUTATE: 2})
    meter = engine.meter(ANN)
    assert meter is not None
    for _ in range(int(2 * MUTATION_BURST_SECONDS)):
        meter.take_mutate(1, 1.0)
    # One more may go beyond it.
    meter.take_mutate(4, 1.0)
    with pytest.raises(QuotaExceeded) as caught:
        meter.take_mutate(1, 1.0)
    assert caught.value.seconds == 2


def test_a_percentage_is_of_the_loops_time() -> None:
    engine = quotas()
    engine.apply(USER_ANN, {Kind.REQUEST: 10})
    meter = engine.meter(ANN)
    assert meter is not None
    assert meter.request is not None
    meter.request.count(0.1, 1.0)
    assert meter.asked(1.0) == 0
    meter.request.count(0.05, 1.0)
    assert meter.asked(1.0) == pytest.approx(0.5)
    assert meter.produced(1_000_000, 1.0) == pytest.approx(0.5)
    assert meter.asked(1.6) == 0


@pytest.mark.parametrize(
    ("kind", "value", "wrong"),
    [
        (Kind.PRODUCE, 0, "from 1 to"),
        (Kind.PRODUCE, 1.5, "a whole number"),
        (Kind.PRODUCE, float("nan"), "must be a number"),
        (Kind.PRODUCE, float("inf"), "must be a number"),
        (Kind.CONNECT, 1 << 31, "from 1 to"),
        (Kind.REQUEST, 0, "from 0.001 to"),
        (Kind.CONNECTIONS, -1, "from 0 to"),
    ],
)
def test_values(kind: Kind, value: float, wrong: str) -> None:
    with pytest.raises(InvalidQuota, match=wrong):
        check_value(kind, value)
    assert check_value(Kind.REQUEST, 0.5) == 0.5


@pytest.mark.parametrize(
    ("parts", "wrong"),
    [
        ([], "is empty"),
        ([("group", "a")], "'group' cannot have a quota. Use one of user, client-id, ip"),
        ([("user", "a"), ("user", "b")], "more than once"),
        ([("user", "a"), ("ip", "10.0.0.1")], "cannot be combined"),
        ([("ip", "localhost")], "'localhost' is not an IP address"),
        ([("user", "")], r"1 to 255 characters \(got 0\)"),
        ([("user", "a" * 256)], r"1 to 255 characters \(got 256\)"),
    ],
)
def test_entities(parts: list[tuple[str, str | None]], wrong: str) -> None:
    with pytest.raises(InvalidQuota, match=wrong):
        make_entity(parts)


def test_kinds_are_for_types() -> None:
    assert kind_of("producer_byte_rate", frozenset((EntityType.USER, EntityType.CLIENT_ID))) is Kind.PRODUCE
    assert kind_of("connections_max", frozenset((EntityType.IP,))) is Kind.CONNECTIONS
    with pytest.raises(InvalidQuota, match="'connection_creation_rate' is not a quota of user"):
        kind_of("connection_creation_rate", frozenset((EntityType.USER,)))
    with pytest.raises(InvalidQuota, match="not a quota of client-id and user"):
        kind_of("topics_max", frozenset((EntityType.USER, EntityType.CLIENT_ID)))


def _produced(engine: Quotas, session: Session, size: int) -> float:
    meter = engine.meter(session)
    assert meter is not None
    return meter.produced(size, 1.0)


# --- connections ------------------------------------------------------------------------------------------------------


async def test_so_many_connections_from_an_address() -> None:
    engine = quotas(quota_address_connections=2)
    limits = engine.connections
    assert [limits.admit("10.0.0.1") for _ in range(3)] == [0, 0, None]
    assert limits.admit("10.0.0.2") == 0
    limits.forget("10.0.0.1")
    assert [limits.admit("10.0.0.1") for _ in range(2)] == [0, None]
    engine.apply(make_entity([("ip", "10.0.0.1")]), {Kind.CONNECTIONS: 3})
    assert [limits.admit("::ffff:10.0.0.1"), limits.admit("10.0.0.1")] == [0, 0]
    assert limits.admit("10.0.0.1") is None
    assert engine.figures[Kind.CONNECTIONS].refused == 3
    engine.apply(make_entity([("ip", None)]), {Kind.CONNECTIONS: 0})
    assert limits.admit("10.0.0.3") is None
    for host, count in (("10.0.0.1", 3), ("10.0.0.2", 1), ("::ffff:10.0.0.1", 1)):
        for _ in range(count):
            limits.forget(host)
    assert [limits.of_address(host) for host in ("10.0.0.1", "10.0.0.2")] == [0, 0]


async def test_connections_that_come_too_fast_wait_and_are_then_refused() -> None:
    engine = quotas(quota_throttle_max_ms=2_000)
    engine.apply(make_entity([("ip", None)]), {Kind.CONNECT: 2})
    waits = [engine.connections.admit("10.0.0.1") for _ in range(20)]
    assert waits[:2] == [0, 0]
    waited = [wait for wait in waits[2:] if wait]
    assert waited == sorted(waited)
    assert 0 < waited[0] <= 0.5
    assert waited[-1] <= 2
    assert waits[-1] is None
    assert engine.connections.of_address("10.0.0.1") == 2 + len(waited)
    assert engine.connections.admit("10.0.0.2") == 0


async def test_so_many_connections_of_a_user() -> None:
    engine = quotas(quota_user_connections=2)

    def come(user: str) -> Session:
        session = Session(user=user)
        session.on_ended = print
        return session

    first, second, third = (come("ann") for _ in range(3))
    assert [engine.connections.admit_user(each) for each in (first, second, third)] == [True, True, False]
    assert engine.connections.admit_user(first), "authenticated anew"
    assert engine.connections.admit_user(come("ben"))
    assert engine.connections.admit_user(Session(user="ann")), "it ends with its request"
    # The session has become anonymous, or is forgotten.
    second.user = ""
    assert engine.connections.admit_user(third)
    del first
    gc.collect()
    fourth = come("ann")
    assert engine.connections.admit_user(fourth)
    engine.apply(USER_ANN, {Kind.CONNECTIONS: 0})
    assert not engine.connections.admit_user(come("ann"))
