"""Rights that are taken away: what is running ends, and what is cached is asked for again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kio.schema.errors import ErrorCode
from tests.doors.kafka.probes import BEAT, JOIN, NO_GROUP, NO_TOPIC
from tests.doors.kafka.secured import as_user, secured_door
from tests.doors.kafka.wired import Wire, batch_of, fetch_fields, values
from tests.waiting import SECONDS, until

from headrace.broker.security import OWN, Operation, Resource
from headrace.broker.security.filters import RuleFilter
from headrace.broker.security.rules import Rule, allow
from headrace.doors.kafka.door import KafkaDoor
from headrace.log.interface import Topic

READ = allow("ann", Operation.READ, Resource.TOPIC, "t")
WRITE = allow("ann", Operation.WRITE, Resource.TOPIC, "t")
GROUP = allow("ann", Operation.READ, Resource.GROUP, "g")
FOR_ALL = allow("*", Operation.READ, Resource.TOPIC, "t")
BOB = [allow("bob", each.operation, each.resource, each.name) for each in (READ, WRITE, GROUP)]
WAITS = {"max_wait": 60_000, "min_bytes": 1}


async def grant(door: KafkaDoor, rules: Sequence[Rule]) -> None:
    await door.broker.security.grants.add_rules(OWN, rules)


async def revoke(door: KafkaDoor, rule: Rule) -> None:
    wanted = RuleFilter(rule.resource, rule.name, user=rule.user, operation=rule.operation)
    assert await door.broker.security.grants.remove_rules(OWN, [wanted]) == [[rule]]


def error_of(fetched: Any) -> ErrorCode:
    code: ErrorCode = fetched.responses[0].partitions[0].error_code
    return code


async def waiting(door: KafkaDoor, wire: Wire, topic: Topic, **more: Any) -> None:
    """Have a long poll wait."""
    wire.send("fetch", 11, **fetch_fields((topic, 0, 0), **{**WAITS, **more}))
    own = wire.writer.get_extra_info("sockname")
    [connection] = [each for each in door.connections if each.address == own[:2]]
    await until(lambda: connection.fetching is not None)


async def test_a_long_poll_ends(tmp_path: Path) -> None:
    async with secured_door(tmp_path) as door:
        await grant(door, [READ, *BOB])
        topic = await door.broker.topics.create("t", 1)
        async with as_user(door, "ann") as wire, as_user(door, "bob") as other:
            await waiting(door, wire, topic)
            await waiting(door, other, topic)
            await revoke(door, READ)
            fetched = await asyncio.wait_for(wire.receive("fetch", 11), SECONDS)
            assert error_of(fetched) is NO_TOPIC
            # Another one's goes on, and gets what comes.
            async with as_user(door, "root") as root:
                await root.produce(9, topic, batch_of(b"a"))
            assert values(await asyncio.wait_for(other.receive("fetch", 11), SECONDS)) == [b"a"]


async def test_a_rule_for_all_that_goes_ends_everybodys(tmp_path: Path) -> None:
    async with secured_door(tmp_path) as door:
        await grant(door, [FOR_ALL])
        topic = await door.broker.topics.create("t", 1)
        async with as_user(door, "ann") as wire, as_user(door, "bob") as other:
            for each in (wire, other):
                await waiting(door, each, topic)
            await revoke(door, FOR_ALL)
            for each in (wire, other):
                assert error_of(await asyncio.wait_for(each.receive("fetch", 11), SECONDS)) is NO_TOPIC


async def test_a_fetch_session_ends_partition_by_partition(tmp_path: Path) -> None:
    kept = allow("ann", Operation.READ, Resource.TOPIC, "kept")
    async with secured_door(tmp_path) as door:
        await grant(door, [READ, kept])
        topic, other = await door.broker.topics.create("t", 1), await door.broker.topics.create("kept", 1)
        async with as_user(door, "ann") as wire:
            first = await wire.ask("fetch", 11, **fetch_fields((topic, 0, 0), (other, 0, 0), session_epoch=0))
            assert {each.partitions[0].error_code for each in first.responses} == {ErrorCode.none}
            goes_on = {"session_id": first.session_id, **WAITS}
            wire.send("fetch", 11, **fetch_fields(**goes_on, session_epoch=1))
            [connection] = door.connections
            await until(lambda: connection.fetching is not None)
            await revoke(door, READ)
            [gone] = (await asyncio.wait_for(wire.receive("fetch", 11), SECONDS)).responses
            assert (gone.topic, gone.partitions[0].error_code) == ("t", NO_TOPIC)
            await grant(door, [READ])
            [back] = (
                await wire.ask("fetch", 11, **fetch_fields(session_id=first.session_id, session_epoch=2))
            ).responses
            assert (back.topic, back.partitions[0].error_code) == ("t", ErrorCode.none)


async def test_a_fetch_session_is_of_no_use_to_others(tmp_path: Path) -> None:
    async with secured_door(tmp_path) as door:
        await grant(door, [READ])
        topic = await door.broker.topics.create("t", 1)
        async with as_user(door, "ann") as wire, as_user(door, "bob") as other:
            first = await wire.ask("fetch", 11, **fetch_fields((topic, 0, 0), session_epoch=0))
            async with as_user(door, "root") as root:
                await root.produce(9, topic, batch_of(b"a"))
            taken = await other.ask("fetch", 11, **fetch_fields(session_id=first.session_id, session_epoch=1))
            assert error_of(taken) is NO_TOPIC
            assert values(taken) == []


async def test_a_cached_produce_is_asked_for_again(tmp_path: Path) -> None:
    async with secured_door(tmp_path) as door:
        await grant(door, [WRITE])
        topic = await door.broker.topics.create("t", 1)
        async with as_user(door, "ann") as wire:
            for _ in range(3):
                assert (await wire.produce(9, topic, batch_of(b"a"))).error_code is ErrorCode.none
            [connection] = door.connections
            assert connection.cached is not None
            await revoke(door, WRITE)
            assert (await wire.produce(9, topic, batch_of(b"a"))).error_code is NO_TOPIC
            await grant(door, [WRITE])
            assert (await wire.produce(9, topic, batch_of(b"a"))).error_code is ErrorCode.none


async def test_a_cached_produce_of_one_user_does_not_serve_another(tmp_path: Path) -> None:
    async with secured_door(tmp_path) as door:
        await grant(door, [WRITE])
        topic = await door.broker.topics.create("t", 1)
        async with as_user(door, "ann") as wire, as_user(door, "bob") as other:
            other.correlation = wire.correlation
            for _ in range(2):
                assert (await wire.produce(9, topic, batch_of(b"a"))).error_code is ErrorCode.none
                assert (await other.produce(9, topic, batch_of(b"a"))).error_code is NO_TOPIC


async def test_a_member_leaves_its_group(tmp_path: Path) -> None:
    async with secured_door(tmp_path, group_initial_rebalance_delay_ms=0) as door:
        await grant(door, [GROUP])
        async with as_user(door, "ann") as wire, as_user(door, "root") as root:
            fields = {"group_id": "g", "group_instance_id": None, **JOIN}
            known = await wire.ask("join_group", 7, member_id="", **fields)
            joined = await wire.ask("join_group", 7, member_id=known.member_id, **fields)
            assert joined.error_code is ErrorCode.none
            await revoke(door, GROUP)
            assert await wire.closed() == b""
            await until(lambda: is_vacant(root))
        async with as_user(door, "ann") as wire:
            assert (await wire.ask("join_group", 7, member_id="", **fields)).error_code is NO_GROUP


async def is_vacant(wire: Wire) -> bool:
    described = await wire.ask("describe_groups", 5, groups=["g"], include_authorized_operations=False)
    return not described.groups[0].members


async def test_a_member_of_the_consumer_protocol_leaves_its_group(tmp_path: Path) -> None:
    async with secured_door(tmp_path) as door:
        await door.broker.topics.create("t", 1)
        await grant(door, [GROUP, READ])
        async with as_user(door, "ann") as wire, as_user(door, "root") as root:
            beat = {**BEAT, "subscribed_topic_names": ["t"]}
            joined = await wire.ask("consumer_group_heartbeat", 1, group_id="g", **beat)
            assert joined.error_code is ErrorCode.none
            await door.broker.security.accounts.create_user(OWN, "spare", None)
            await revoke(door, GROUP)
            assert await wire.closed() == b""

            async def is_gone() -> bool:
                described = await root.ask(
                    "consumer_group_describe", 1, group_ids=["g"], include_authorized_operations=False
                )
                return not described.groups[0].members

            await until(is_gone)


async def test_a_member_that_leaves_by_itself_is_watched_no_more(tmp_path: Path) -> None:
    async with secured_door(tmp_path, group_initial_rebalance_delay_ms=0) as door:
        await grant(door, [GROUP])
        async with as_user(door, "ann") as wire:
            fields = {"group_id": "g", "group_instance_id": None, **JOIN}
            known = await wire.ask("join_group", 7, member_id="", **fields)
            await wire.ask("join_group", 7, member_id=known.member_id, **fields)
            [connection] = door.connections
            assert connection.memberships is not None
            assert len(connection.memberships) == 1
            leaving = [{"member_id": known.member_id, "group_instance_id": None}]
            await wire.ask("leave_group", 3, group_id="g", members=leaving)
            assert len(connection.memberships) == 0
            await revoke(door, GROUP)
            # The connection goes on.
            assert (await wire.ask("join_group", 7, member_id="", **fields)).error_code is NO_GROUP


async def test_a_user_that_is_deleted_is_out_at_once(tmp_path: Path) -> None:
    async with secured_door(tmp_path) as door:
        await grant(door, [READ])
        topic = await door.broker.topics.create("t", 1)
        await door.broker.security.accounts.set_password(OWN, "ann", "blue fish")
        async with as_user(door, "ann") as wire:
            await waiting(door, wire, topic)
            await door.broker.security.accounts.delete_user(OWN, "ann")
            assert await wire.closed() == b""
