"""Which quota is a client's, beside a model: Kafka's documented list, read from the top."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.quota_settings import QuotaSettings
from headrace.broker.quotas.entities import Entity, from_key, make_entity, to_key
from headrace.broker.quotas.kinds import EntityType, Kind
from headrace.broker.quotas.table import QuotaTable

USERS = ("ann", "ben")
CLIENTS = ("web", "app")
RATES = (Kind.PRODUCE, Kind.CONSUME, Kind.REQUEST, Kind.MUTATE)


def entity_of(user: str | None, client: str | None) -> Entity:
    """Of the parts that are not empty."""
    return make_entity((kind, name) for kind, name in (("user", user), ("client-id", client)) if name != "")


entities: st.SearchStrategy[Entity] = (
    st.tuples(st.sampled_from(("", *USERS, None)), st.sampled_from(("", *CLIENTS, None)))
    .filter(lambda names: names != ("", ""))
    .map(lambda names: entity_of(*names))
)
quotas = st.dictionaries(entities, st.dictionaries(st.sampled_from(RATES), st.integers(1, 9), min_size=1))


def expected(
    set_: dict[Entity, dict[Kind, int]], settings: dict[Kind, int], kind: Kind, user: str, client: str
) -> tuple[float, tuple[str | None, str | None]] | None:
    """Kafka's list, word for word as its documentation numbers it."""
    u, c = EntityType.USER, EntityType.CLIENT_ID
    steps: list[tuple[Entity, tuple[str | None, str | None]]] = [
        (((u, user), (c, client)), (user, client)),
        (((u, user), (c, None)), (user, client)),
        (((u, user),), (user, None)),
        (((u, None), (c, client)), (user, client)),
        (((u, None), (c, None)), (user, client)),
        (((u, None),), (user, None)),
        (((c, client),), (None, client)),
        (((c, None),), (None, client)),
    ]
    for entity, sharers in steps:
        if kind in set_.get(entity, {}):
            return set_[entity][kind], sharers
    if settings.get(kind):
        return settings[kind], (None, client)
    return None


@given(quotas, st.integers(0, 9), st.integers(0, 9))
def test_the_most_particular_entity_counts(set_: dict[Entity, dict[Kind, int]], produce: int, fetch: int) -> None:
    table = QuotaTable(QuotaSettings(quota_produce_bytes=produce, quota_fetch_bytes=fetch))
    for entity, values in set_.items():
        table.put(entity, values)
    settings = {Kind.PRODUCE: produce, Kind.CONSUME: fetch}
    assert table.limits_clients == bool(set_ or produce or fetch)
    for entity in set_:
        table.put(entity, {Kind.TOPICS: 1})
    assert table.limits_clients == bool(produce or fetch)
    for entity, values in set_.items():
        table.put(entity, values)
    for user in (*USERS, "other"):
        for client in (*CLIENTS, "other"):
            found = table.rates(user, client)
            for kind in RATES:
                limit = found.get(kind)
                wanted = expected(set_, settings, kind, user, client)
                assert (None if limit is None else (limit.value, limit.sharers)) == wanted


@given(entities)
def test_an_entity_is_stored_and_read_back(entity: Entity) -> None:
    assert from_key(to_key(entity)) == entity
    assert all(to_key(entity)[::2])
