"""DescribeClientQuotas and AlterClientQuotas."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from tests.broker.quotas.test_precedence import entities
from tests.doors.kafka.wired import Wire, open_door

from headrace.broker.quotas.entities import Entity
from headrace.broker.quotas.filters import Match, MatchType, QuotaFilter
from headrace.broker.quotas.kinds import EntityType

Quotas = dict[tuple[tuple[str, str | None], ...], dict[str, float]]
EXACT, DEFAULT, ANY = 0, 1, 2


async def alter(
    wire: Wire, entity: Mapping[str, str | None], validate_only: bool = False, **ops: float | None
) -> ErrorCode:
    (code,) = await alter_all(wire, [(list(entity.items()), list(ops.items()))], validate_only)
    return code


async def alter_all(
    wire: Wire,
    entries: list[tuple[list[tuple[str, str | None]], list[tuple[str, float | None]]]],
    validate_only: bool = False,
) -> list[ErrorCode]:
    asked = [
        {
            "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity],
            "ops": [{"key": key, "value": value or 0.0, "remove": value is None} for key, value in ops],
        }
        for entity, ops in entries
    ]
    reply = await wire.ask("alter_client_quotas", 1, entries=asked, validate_only=validate_only)
    for (entity, _), answered in zip(entries, reply.entries, strict=True):
        assert [(each.entity_type, each.entity_name) for each in answered.entity] == entity
        assert (answered.error_code is ErrorCode.none) == (answered.error_message is None)
    return [each.error_code for each in reply.entries]


async def describe(wire: Wire, *components: tuple[str, int, str | None], strict: bool = False) -> Any:
    asked = [{"entity_type": kind, "match_type": by, "match": name} for kind, by, name in components]
    return await wire.ask("describe_client_quotas", 1, components=asked, strict=strict)


async def found(wire: Wire, *components: tuple[str, int, str | None], strict: bool = False) -> Quotas:
    reply = await describe(wire, *components, strict=strict)
    assert reply.error_code is ErrorCode.none
    return {
        tuple((each.entity_type, each.entity_name) for each in entry.entity): {
            each.key: each.value for each in entry.values
        }
        for entry in reply.entries
    }


async def test_set_describe_and_remove(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door, await Wire.open(door) as wire:
        assert await found(wire) == {}
        assert await alter(wire, {"user": "ann"}, producer_byte_rate=10, consumer_byte_rate=20) is ErrorCode.none
        assert await alter(wire, {"client-id": "web", "user": "ann"}, request_percentage=12.5) is ErrorCode.none
        assert await alter(wire, {"user": None}, controller_mutation_rate=0.5) is ErrorCode.none
        assert await alter(wire, {"ip": "10.0.0.1"}, connection_creation_rate=3) is ErrorCode.none
        everything: Quotas = {
            (("ip", "10.0.0.1"),): {"connection_creation_rate": 3},
            (("user", "ann"),): {"producer_byte_rate": 10, "consumer_byte_rate": 20},
            (("user", "ann"), ("client-id", "web")): {"request_percentage": 12.5},
            (("user", None),): {"controller_mutation_rate": 0.5},
        }
        assert await found(wire) == everything
        of_ann = {key: value for key, value in everything.items() if ("user", "ann") in key}
        assert await found(wire, ("user", EXACT, "ann")) == of_ann
        assert await found(wire, ("user", EXACT, "ann"), strict=True) == dict([*of_ann.items()][:1])
        assert list(await found(wire, ("user", DEFAULT, None))) == [(("user", None),)]
        assert len(await found(wire, ("user", ANY, None))) == 3
        assert await found(wire, ("user", EXACT, "nobody")) == {}
        assert await found(wire, strict=True) == {}
        assert await alter(wire, {"user": "ann"}, producer_byte_rate=None, consumer_byte_rate=30) is ErrorCode.none
        assert await found(wire, ("user", EXACT, "ann"), strict=True) == {
            (("user", "ann"),): {"consumer_byte_rate": 30}
        }
        assert await alter(wire, {"user": "ann"}, consumer_byte_rate=None, producer_byte_rate=None) is ErrorCode.none
        assert await found(wire, ("user", EXACT, "ann"), strict=True) == {}
        assert await alter(wire, {"user": "ann"}, validate_only=True, producer_byte_rate=1) is ErrorCode.none
        assert await found(wire, ("user", EXACT, "ann"), strict=True) == {}


async def test_what_is_wrong_is_told_of_each_entity(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door, await Wire.open(door) as wire:
        codes = await alter_all(
            wire,
            [
                ([("user", "ann")], [("producer_byte_rate", 1)]),
                ([], [("producer_byte_rate", 1)]),
                ([("group", "a")], [("producer_byte_rate", 1)]),
                ([("user", "a"), ("user", "b")], [("producer_byte_rate", 1)]),
                ([("user", "a"), ("ip", "10.0.0.1")], [("connection_creation_rate", 1)]),
                ([("user", "")], [("producer_byte_rate", 1)]),
                ([("ip", "not an address")], [("connection_creation_rate", 1)]),
                ([("user", "ann")], [("bytes", 1)]),
                ([("user", "ann")], [("connection_creation_rate", 1)]),
                ([("user", "ann")], [("producer_byte_rate", 1.5)]),
                ([("user", "ann")], [("producer_byte_rate", float("nan"))]),
                ([("user", "ann")], [("producer_byte_rate", 1), ("producer_byte_rate", None)]),
                ([("user", "ben")], [("producer_byte_rate", 2)]),
            ],
        )
        assert codes == [ErrorCode.none, *[ErrorCode.invalid_request] * 11, ErrorCode.none]
        assert await found(wire) == {
            (("user", name),): {"producer_byte_rate": rate} for name, rate in (("ann", 1), ("ben", 2))
        }


@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([("group", EXACT, "a")], ErrorCode.unsupported_version),
        ([("", EXACT, "a")], ErrorCode.invalid_request),
        ([("user", EXACT, "a"), ("user", DEFAULT, None)], ErrorCode.invalid_request),
        ([("user", EXACT, None)], ErrorCode.invalid_request),
        ([("user", DEFAULT, "a")], ErrorCode.invalid_request),
        ([("user", ANY, "a")], ErrorCode.invalid_request),
        ([("user", 3, None)], ErrorCode.invalid_request),
        ([("ip", ANY, None), ("user", ANY, None)], ErrorCode.invalid_request),
    ],
)
async def test_filters_that_make_no_sense(
    tmp_path: Path, components: list[tuple[str, int, str | None]], code: ErrorCode
) -> None:
    async with open_door(tmp_path) as door, await Wire.open(door) as wire:
        reply = await describe(wire, *components)
        assert reply.error_code is code
        assert reply.error_message
        assert reply.entries is None


async def test_so_many_entities_may_have_quotas(tmp_path: Path) -> None:
    async with open_door(tmp_path, quota_entities_max=2) as door, await Wire.open(door) as wire:
        for name in ("ann", "ben", "ann"):
            assert await alter(wire, {"user": name}, producer_byte_rate=1) is ErrorCode.none
        assert await alter(wire, {"user": "cid"}, producer_byte_rate=1) is ErrorCode.invalid_request
        assert await alter(wire, {"user": "cid"}, producer_byte_rate=None) is ErrorCode.none
        assert await alter(wire, {"user": "ann"}, producer_byte_rate=None) is ErrorCode.none
        assert await alter(wire, {"user": "cid"}, producer_byte_rate=1) is ErrorCode.none


matches = st.builds(
    lambda kind, by, name: Match(kind, by, name if by is MatchType.EXACT else None),
    st.sampled_from((EntityType.USER, EntityType.CLIENT_ID)),
    st.sampled_from(MatchType),
    st.sampled_from(("ann", "ben", "web")),
)


@given(entities, st.lists(matches, unique_by=lambda each: each.kind), st.booleans())
def test_a_filter_beside_its_description(entity: Entity, matched: list[Match], strict: bool) -> None:
    names = dict(entity)
    wanted = True
    for kind, by, name in matched:
        if kind not in names:
            wanted = False
        elif by is MatchType.EXACT:
            wanted = wanted and names[kind] == name
        elif by is MatchType.DEFAULT:
            wanted = wanted and names[kind] is None
    if strict:
        wanted = wanted and {each.kind for each in matched} == set(names)
    assert QuotaFilter(matched, strict).fits(entity) == wanted
