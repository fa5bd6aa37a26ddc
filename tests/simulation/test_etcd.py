"""The simulated etcd answers as etcd does, and fails as etcd and the way to it do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any

import pytest
from tests.simulation.gateway import decode, encode, post, watch

from simulation.etcd.cluster import EtcdCluster
from simulation.world import World

Main = Callable[[], Awaitable[None]]


def with_etcd(
    main: Callable[[EtcdCluster], Awaitable[None]], names: tuple[str, ...] = ("etcd",), seed: int = 1
) -> World:
    """Run a coroutine on a machine of its own, beside an etcd."""
    world = World(seed, names=("client", *names))
    etcd = EtcdCluster(world, names)

    async def scenario() -> None:
        etcd.start()
        await asyncio.sleep(1)

        async def run(runtime: Any) -> None:
            await main(etcd)

        await world.machines["client"].start(run).wait()

    world.play(scenario())
    return world


async def call(path: str, host: str = "etcd", **body: Any) -> dict[str, Any]:
    status, answer = await post(host, f"/v3/{path}", body)
    assert status == 200, answer
    return answer


async def put(key: str, value: str, **options: Any) -> int:
    answer = await call("kv/put", key=encode(key), value=encode(value), **options)
    return int(answer["header"]["revision"])


async def read(key: str, host: str = "etcd") -> str | None:
    answer = await call("kv/range", host, key=encode(key))
    return decode(answer["kvs"][0]["value"]) if "kvs" in answer else None


def swap_body(key: str, revision: int, value: str) -> dict[str, Any]:
    return {
        "compare": [{"key": encode(key), "target": "MOD", "result": "EQUAL", "mod_revision": str(revision)}],
        "success": [{"request_put": {"key": encode(key), "value": encode(value)}}],
        "failure": [{"requestRange": {"key": encode(key)}}],
    }


def test_keys_in_the_form_of_the_gateway():
    async def main(etcd):
        assert await call("kv/range", key=encode("k")) == {"header": etcd_header(etcd, 1)}
        assert await put("k", "one") == 2
        assert await put("k", "two") == 3
        assert await put("l", "") == 4
        assert await call("kv/range", key=encode("k"), range_end=encode("m")) == {
            "header": etcd_header(etcd, 4),
            "kvs": [
                {
                    "key": encode("k"),
                    "create_revision": "2",
                    "mod_revision": "3",
                    "version": "2",
                    "value": encode("two"),
                },
                {"key": encode("l"), "create_revision": "4", "mod_revision": "4", "version": "1"},
            ],
            "count": "2",
        }
        answer = await call("kv/deleterange", key=encode("k"), rangeEnd="AA==", prevKv=True)
        assert answer["deleted"] == "2"
        assert [decode(kv["key"]) for kv in answer["prev_kvs"]] == ["k", "l"]
        assert await read("k") is None
        assert await call("kv/deleterange", key=encode("k")) == {"header": etcd_header(etcd, 5)}

    with_etcd(main)


def etcd_header(etcd: EtcdCluster, revision: int) -> dict[str, str]:
    (member,) = etcd._members.values()
    return {
        "cluster_id": str(etcd.id),
        "member_id": str(member._id),
        "revision": str(revision),
        "raft_term": str(etcd.term),
    }


def test_transactions_compare_and_change_in_one_revision():
    async def main(etcd):
        created = [{"key": encode("k"), "target": "CREATE", "create_revision": "0"}]
        body = {
            "compare": created,
            "success": [
                {"request_put": {"key": encode("k"), "value": encode("v")}},
                {"request_put": {"key": encode("l"), "value": encode("v")}},
            ],
            "failure": [{"request_range": {"key": encode("k")}}],
        }
        answer = await call("kv/txn", **body)
        assert answer["succeeded"] is True
        assert answer["header"]["revision"] == "2"
        assert answer["responses"] == [{"response_put": {"header": {"revision": "2"}}}] * 2
        answer = await call("kv/txn", **body)
        assert "succeeded" not in answer
        assert answer["responses"][0]["response_range"]["kvs"][0]["mod_revision"] == "2"
        assert answer["header"]["revision"] == "2"
        for target, field, value, holds in (
            ("VALUE", "value", encode("v"), True),
            ("VALUE", "value", encode("w"), False),
            ("VERSION", "version", "1", True),
            ("MOD", "mod_revision", "1", False),
        ):
            answer = await call("kv/txn", compare=[{"key": encode("k"), "target": target, field: value}])
            assert answer.get("succeeded", False) is holds
        answer = await call("kv/txn", compare=[{"key": encode("absent"), "target": "VALUE", "value": ""}])
        assert "succeeded" not in answer
        assert (await call("kv/txn", **swap_body("k", 2, "w")))["succeeded"]
        assert "succeeded" not in await call("kv/txn", **swap_body("k", 2, "x"))
        assert await read("k") == "w"

    with_etcd(main)


def test_leases_take_their_keys_with_them():
    async def main(etcd):
        answer = await call("lease/grant", TTL="1")
        # A shorter one than the least is not granted.
        assert answer["TTL"] == "2"
        lease = answer["ID"]
        await put("k", "v", lease=lease)
        assert (await call("kv/range", key=encode("k")))["kvs"][0]["lease"] == lease
        for _ in range(5):
            await asyncio.sleep(1)
            answer = await call("lease/keepalive", ID=lease)
            assert (answer["result"]["ID"], answer["result"]["TTL"]) == (lease, "2")
        left = await call("lease/timetolive", ID=lease, keys=True)
        assert (left["grantedTTL"], left["keys"]) == ("2", [encode("k")])
        await asyncio.sleep(3)
        assert await read("k") is None
        answer = await call("lease/keepalive", ID=lease)
        assert "TTL" not in answer["result"]
        assert (await call("lease/timetolive", ID=lease))["TTL"] == "-1"
        wanted = "etcdserver: requested lease not found"
        for path, body in (
            ("lease/revoke", {"ID": lease}),
            ("kv/put", {"key": encode("k"), "lease": lease}),
            ("kv/txn", {"success": [{"request_put": {"key": encode("k"), "lease": lease}}]}),
        ):
            status, answer = await post("etcd", f"/v3/{path}", body)
            assert (status, answer["code"], answer["message"]) == (404, 5, wanted)
        assert await read("k") is None
        lease = (await call("lease/grant", TTL="60", ID="7"))["ID"]
        await put("k", "v", lease=lease)
        status, answer = await post("etcd", "/v3/lease/grant", {"TTL": "60", "ID": "7"})
        assert (status, answer["code"]) == (400, 9)
        # A key that is put without the lease stays.
        await put("l", "v", lease=lease)
        await put("l", "v")
        await call("lease/revoke", ID=lease)
        assert await read("k") is None
        assert await read("l") == "v"

    assert with_etcd(main).counts["lease expired"] == 1


def test_a_watch_brings_changes_and_expiries():
    async def main(etcd):
        await put("a/0", "old")
        async with aclosing(watch("etcd", "a/", range_end=encode("a0"))) as stream:
            assert (await anext(stream))["created"] is True
            await put("a/1", "v")
            await put("b", "v")
            (event,) = (await anext(stream))["events"]
            assert decode(event["kv"]["key"]) == "a/1"
            assert "type" not in event
            lease = (await call("lease/grant", TTL="2"))["ID"]
            await put("a/2", "v", lease=lease)
            assert decode((await anext(stream))["events"][0]["kv"]["key"]) == "a/2"
            (event,) = (await anext(stream))["events"]
            assert (event["type"], decode(event["kv"]["key"])) == ("DELETE", "a/2")
        async with aclosing(watch("etcd", "a/0", start_revision="2")) as stream:
            await anext(stream)
            assert decode((await anext(stream))["events"][0]["kv"]["value"]) == "old"

    with_etcd(main)


@pytest.mark.parametrize("seed", range(5))
def test_an_answer_is_lost_before_or_after_the_change(seed: int):
    async def main(etcd):
        revision = await put("k", "0")
        for fault, value in (("request_lost", "0"), ("answer_lost", "1")):
            setattr(etcd.faults, fault, 1.0)
            with pytest.raises((TimeoutError, ConnectionResetError)):
                async with asyncio.timeout(5):
                    await post("etcd", "/v3/kv/txn", swap_body("k", revision, "1"))
            setattr(etcd.faults, fault, 0.0)
            assert await read("k") == value

    world = with_etcd(main, seed=seed)
    assert world.counts["etcd request lost"] == world.counts["etcd answer lost"] == 1


def test_a_swap_is_carried_out_after_its_client_gave_up_unless_the_revision_has_changed():
    async def main(etcd):
        for touched in (False, True):
            revision = await put("k", "0")
            etcd.faults.late, etcd.faults.late_s = 1.0, 300.0
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1):
                    await post("etcd", "/v3/kv/txn", swap_body("k", revision, "late"))
            etcd.faults.late = 0.0
            assert await read("k") == "0"
            if touched:
                await put("k", "touched")
            await asyncio.sleep(10_000)
            assert await read("k") == ("touched" if touched else "late")

    assert with_etcd(main, seed=2).counts["etcd late, given up"] == 2


def test_a_watch_hangs_and_nothing_comes():
    async def main(etcd):
        etcd.faults.watch_hang = 1.0
        async with aclosing(watch("etcd", "k")) as stream:
            await anext(stream)
            await put("k", "v")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(60):
                    await anext(stream)

    assert with_etcd(main).counts["etcd watch hung"] == 1


def test_a_pause_of_etcd_ends_leases_that_are_kept_alive():
    async def main(etcd):
        machine = etcd.world.machines["etcd"]
        lease = (await call("lease/grant", TTL="2"))["ID"]
        await put("k", "v", lease=lease)
        machine.pause()
        await asyncio.sleep(1)
        keeping = asyncio.ensure_future(call("lease/keepalive", ID=lease))
        await asyncio.sleep(5)
        machine.resume()
        assert "TTL" not in (await keeping)["result"]
        assert await read("k") is None

    with_etcd(main)


def test_a_restart_of_etcd_keeps_keys_and_begins_leases_anew():
    async def main(etcd):
        lease = (await call("lease/grant", TTL="2"))["ID"]
        await put("k", "v", lease=lease)
        etcd.kill()
        with pytest.raises(ConnectionRefusedError):
            await read("k")
        await asyncio.sleep(10)
        etcd.start()
        await asyncio.sleep(1)
        assert await read("k") == "v"
        await asyncio.sleep(3)
        assert await read("k") is None

    with_etcd(main)


def test_a_restored_etcd_has_lower_revisions():
    async def main(etcd):
        await put("k", "old")
        backup = etcd.backup()
        await put("k", "new")
        etcd.restore(backup)
        await asyncio.sleep(1)
        assert await read("k") == "old"
        assert await put("k", "other") == 3

    with_etcd(main)


def test_a_majority_of_members_serves_and_the_rest_does_not():
    async def main(etcd):
        world = etcd.world
        await put_at("e1", "1")
        for other in ("e2", "e3"):
            world.network.cut("e1", other)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await put_at("e1", "lost")
        await put_at("e2", "2")
        status, answer = await post("e1", "/v3/kv/range", {"key": encode("k")})
        assert (status, answer["code"]) == (503, 14)
        world.network.heal_all()
        assert await read("k", "e1") == "2"

    async def put_at(host: str, value: str) -> None:
        await call("kv/put", host, key=encode("k"), value=encode(value))

    with_etcd(main, names=("e1", "e2", "e3"))


def test_status_version_and_unknown_paths():
    async def main(etcd):
        answer = await call("maintenance/status")
        assert answer["version"].startswith("3.5.")
        assert answer["leader"] == answer["header"]["member_id"]
        assert (await post("etcd", "/version", {}))[1]["etcdserver"] == answer["version"]
        assert (await post("etcd", "/v3/nothing", {}))[0] == 404
        assert (await post("etcd", "/v3/kv/range", {}))[0] == 400

    with_etcd(main)
