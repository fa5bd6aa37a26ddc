"""The client of etcd beside a server that answers as each test wants: every way in which an answer can fail to come."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.cluster.scripted import CUT, SILENT, Scripted, encode, header, kv, members
from tests.waiting import until

from headrace.cluster.errors import EtcdError, EtcdRejected, EtcdUnavailable
from headrace.cluster.etcd import Entry, Etcd, Refused, Swapped, Unknown
from headrace.cluster.gateway import ANSWER_MAX_BYTES


def swapped(path: str, body: dict[str, Any]) -> object:
    return {"header": header(8), "succeeded": True, "responses": [{"response_put": {}}]}


def empty(path: str, body: dict[str, Any]) -> object:
    return {"header": header()}


async def test_a_range_has_keys_values_revisions_and_leases() -> None:
    def answer(path: str, body: dict[str, Any]) -> object:
        return {"header": header(), "kvs": [kv("a/1", "x", 3), kv("a/2", "", 5, lease=9)], "count": "2"}

    async with members(answer) as (etcd, [server]):
        view = await etcd.read_prefix("a/")
        assert view.revision == 7
        assert dict(view.entries) == {"a/1": Entry("a/1", b"x", 3), "a/2": Entry("a/2", b"", 5, 9)}
        assert server.requests == [("/v3/kv/range", {"key": encode("a/"), "range_end": encode("a0")}, "")]
        assert await etcd.read("a/2") == Entry("a/2", b"", 5, 9)
        assert await etcd.read("a/3") is None


async def test_a_swap_compares_the_revision_and_gives_the_new_one() -> None:
    async with members(swapped) as (etcd, [server]):
        assert await etcd.swap("k", 5, b"new", lease=4) == Swapped(8)
        [(path, body, _)] = server.requests
        assert path == "/v3/kv/txn"
        assert body["compare"] == [{"key": encode("k"), "target": "MOD", "result": "EQUAL", "mod_revision": "5"}]
        assert body["success"] == [{"request_put": {"key": encode("k"), "value": encode("new"), "lease": "4"}}]
        assert await etcd.swap("k", 8, None) == Swapped(8)
        assert server.requests[1][1]["success"] == [{"request_delete_range": {"key": encode("k")}}]


@pytest.mark.parametrize(("kvs", "current"), [([kv("k", "other", 6)], Entry("k", b"other", 6)), ([], None)])
async def test_a_swap_that_is_refused_gives_what_is_there(kvs: list[dict[str, str]], current: Entry | None) -> None:
    def answer(path: str, body: dict[str, Any]) -> object:
        return {"header": header(), "responses": [{"response_range": {"kvs": kvs} if kvs else {}}]}

    async with members(answer) as (etcd, _):
        assert await etcd.swap("k", 5, b"new") == Refused(current)


def text(status: int, body: bytes, length: int | None = None) -> bytes:
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body) if length is None else length, body)


FAILURES = {
    "cut": CUT,
    "torn head": b"HTTP/1.1 200",
    "torn body": text(200, b'{"header": {', 100),
    "garbage": b"\x00\x01\x02\r\n\r\n",
    "empty": text(200, b""),
    "not JSON": text(200, b"<html>"),
    "no object": text(200, b"[1]"),
    "no header": text(200, b'{"succeeded": true}'),
    "wrong types": text(200, b'{"header": {"revision": "x"}, "succeeded": true}'),
    "no responses": text(200, b'{"header": {"revision": "1"}}'),
    "unavailable": (503, {"code": 14, "message": "etcdserver: request timed out"}),
    "no leader": (503, {"error": "etcdserver: no leader", "code": 14, "message": "etcdserver: no leader"}),
    "status alone": text(500, b""),
    "error in a stream": {"error": {"grpc_code": 2, "http_code": 500, "message": "what"}},
}


@pytest.mark.parametrize("name", FAILURES)
async def test_a_swap_without_a_good_answer_is_unknown_and_is_never_sent_again(name: str) -> None:
    async with members(lambda *_: FAILURES[name], swapped) as (etcd, [first, second]):
        outcome = await etcd.swap("k", 5, b"new")
        assert isinstance(outcome, Unknown)
        assert outcome.reason
        assert len(first.requests) == 1
        assert second.requests == []


@pytest.mark.parametrize(
    "name", [name for name in FAILURES if name not in ("wrong types", "no responses", "no header")]
)
async def test_a_read_without_a_good_answer_goes_to_the_next_member_which_then_stays_first(name: str) -> None:
    async with members(lambda *_: FAILURES[name], empty) as (etcd, [first, second]):
        assert (await etcd.read_prefix("a/")).revision == 7
        assert (await etcd.read_prefix("a/")).revision == 7
        assert len(first.requests) == 1
        assert len(second.requests) == 2
        with pytest.raises(EtcdUnavailable):
            await Etcd([first.address]).read("a")


async def test_an_answer_is_bounded() -> None:
    async with members(lambda *_: text(200, b" " * (ANSWER_MAX_BYTES + 1))) as (etcd, _):
        outcome = await etcd.swap("k", 5, b"new")
        assert isinstance(outcome, Unknown)
        assert f"more than {ANSWER_MAX_BYTES} bytes" in outcome.reason


async def test_what_was_certainly_not_sent_goes_to_the_next_member() -> None:
    gone = Scripted(empty)
    await gone.start()
    gone.stop()
    async with members(swapped) as (_, [server]):
        etcd = Etcd([gone.address, server.address])
        assert await etcd.swap("k", 5, b"new") == Swapped(8)
        await etcd.close()


async def test_without_any_member_nothing_is_changed_and_each_is_named() -> None:
    gone = [Scripted(empty), Scripted(empty)]
    for server in gone:
        await server.start()
        server.stop()
    etcd = Etcd([server.address for server in gone])
    with pytest.raises(EtcdUnavailable, match=r"no member of etcd can be used: .*Connection refused; .*refused"):
        await etcd.swap("k", 5, b"new")
    with pytest.raises(EtcdUnavailable, match="Connection refused"):
        await Etcd([gone[0].address]).read("k")
    with pytest.raises(EtcdUnavailable, match="is not a host name"):
        await Etcd([("a..b", 1)]).read("k")


async def test_with_patience_a_member_that_was_reached_is_asked_again() -> None:
    answers = [FAILURES["no leader"], CUT, FAILURES["unavailable"], {"header": header()}]
    async with members(lambda *_: answers.pop(0), patience_seconds=40) as (etcd, [server]):
        assert (await etcd.read_prefix("a/")).revision == 7
        server.answer = lambda *_: CUT
        assert isinstance(await etcd.swap("k", 5, b"new"), Unknown)
        assert len(server.requests) == 5
        # One that is not reached is reported at once.
        server.stop()
        with pytest.raises(EtcdUnavailable, match="Connection refused"):
            await etcd.read("k")


async def test_a_final_answer_is_an_error_and_changes_nothing() -> None:
    space = {"code": 8, "message": "etcdserver: mvcc: database space exceeded"}
    async with members(lambda *_: (429, space), swapped) as (etcd, [first, second]):
        with pytest.raises(EtcdRejected, match="its database is full"):
            await etcd.swap("k", 5, b"new")
        assert second.requests == []
        first.answer = swapped
        assert await etcd.swap("k", 5, b"new") == Swapped(8)
        assert first.connections == 1


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("3.4.13", "is etcd 3.4.13, which is too old: .* 3.5 or newer is recommended"),
        ("3.3.25", "too old"),
        ("", "does not answer as etcd does"),
    ],
)
async def test_a_member_that_is_too_old_is_named(version: str, said: str) -> None:
    async with members(empty) as (etcd, [server]):
        server.version = version
        with pytest.raises(EtcdRejected, match=said):
            await etcd.read("k")
        assert server.requests == []
        assert next(iter((await etcd.versions()).values())).startswith(f"127.0.0.1:{server.address[1]} ")


async def test_members_of_two_etcds_are_never_mixed() -> None:
    async with members(empty, empty) as (etcd, [first, second]):
        second.etcd_cluster = "2"
        await etcd.read("k")
        first.answer = lambda *_: CUT
        with pytest.raises(EtcdUnavailable, match="belongs to another etcd"):
            await etcd.read("k")
        assert second.requests == []


async def test_a_user_who_may_not_ask_for_the_status_learns_the_version_otherwise() -> None:
    async with members(empty, empty) as (etcd, [first, second]):
        first.is_closed = second.is_closed = True
        first.version = "3.4.1"
        await etcd.read("k")
        assert (first.paths(), second.paths()) == ([], ["/v3/kv/range"])
        assert "3.5.9" in (await etcd.versions()).values()
        # It belongs to another etcd, as its first answer shows.
        second.answer = lambda *_: {"header": {**header(), "cluster_id": "2"}, "succeeded": True}
        first.version, first.answer = "3.6.0", swapped
        assert await etcd.swap("k", 1, b"x") == Swapped(8)
        assert second.paths()[1:] == ["/v3/kv/txn"]


async def test_connections_are_kept_and_one_that_was_closed_is_not_used() -> None:
    async with members(swapped) as (etcd, [server]):
        for _ in range(3):
            assert isinstance(await etcd.swap("k", 5, b"new"), Swapped)
        assert server.connections == 1
        await asyncio.gather(*(etcd.swap("k", 5, b"new") for _ in range(8)))
        assert server.connections <= 8
        for writer in server.writers:
            writer.close()
            await writer.wait_closed()
        await until(lambda: not any(gateway.is_usable for gateway in etcd._idle[server.address]))
        before = server.connections
        assert isinstance(await etcd.swap("k", 5, b"new"), Swapped)
        assert server.connections == before + 1


async def test_a_call_that_is_cancelled_leaves_no_connection_behind() -> None:
    begun = asyncio.Event()

    def answer(path: str, body: dict[str, Any]) -> object:
        begun.set()
        return SILENT

    async with members(answer) as (etcd, [server]):
        task = asyncio.create_task(etcd.swap("k", 5, b"new"))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert etcd._idle[server.address] == []
        server.answer = swapped
        assert await etcd.swap("k", 5, b"new") == Swapped(8)


async def test_leases_are_granted_kept_and_revoked() -> None:
    answers: dict[str, object] = {
        "/v3/lease/grant": {"header": header(), "ID": "77", "TTL": "3"},
        "/v3/lease/keepalive": {"result": {"header": header(), "ID": "77", "TTL": "3"}},
        "/v3/lease/revoke": {"header": header()},
    }
    async with members(lambda path, _: answers[path]) as (etcd, [server]):
        assert await etcd.grant(3) == 77
        assert await etcd.keep_alive(77)
        await etcd.revoke(77)
        assert [body for _, body, _ in server.requests] == [{"TTL": "3"}, {"ID": "77"}, {"ID": "77"}]
        answers["/v3/lease/keepalive"] = {"result": {"header": header(), "ID": "77"}}
        assert not await etcd.keep_alive(77)
        answers["/v3/lease/revoke"] = (404, {"code": 5, "message": "etcdserver: requested lease not found"})
        await etcd.revoke(77)
        answers["/v3/lease/revoke"] = (403, {"code": 7, "message": "etcdserver: permission denied"})
        with pytest.raises(EtcdRejected, match="no right to read and write"):
            await etcd.revoke(77)


class Users:
    """Answers to those who show the newest token."""

    def __init__(self) -> None:
        self.tokens = 0

    def __call__(self, path: str, body: dict[str, Any]) -> object:
        if path != "/v3/auth/authenticate":
            return swapped(path, body)
        if body != {"name": "me", "password": "secret"}:
            return (400, {"code": 3, "message": "etcdserver: authentication failed, invalid user ID or password"})
        self.tokens += 1
        return {"header": header(), "token": f"t{self.tokens}"}


async def test_a_user_shows_a_token_and_gets_a_new_one_when_it_is_no_longer_good() -> None:
    users = Users()
    async with members(users, user="me", password="secret") as (etcd, [server]):
        assert await etcd.swap("k", 5, b"new") == Swapped(8)
        assert await etcd.swap("k", 5, b"new") == Swapped(8)
        assert [token for _, _, token in server.requests] == ["", "t1", "t1"]

        def outdated(path: str, body: dict[str, Any]) -> object:
            if server.requests[-1][2] == "t1":
                return (401, {"code": 16, "message": "etcdserver: invalid auth token"})
            return users(path, body)

        server.answer = outdated
        assert await etcd.swap("k", 5, b"new") == Swapped(8)
        assert [token for _, _, token in server.requests[3:]] == ["t1", "", "t2"]
        assert server.connections == 1


async def test_a_wrong_password_and_a_missing_one_are_sentences() -> None:
    async with members(Users(), user="me", password="wrong") as (etcd, _):
        with pytest.raises(EtcdRejected, match="the user or the password is wrong"):
            await etcd.swap("k", 5, b"new")
    nameless = (400, {"code": 3, "message": "etcdserver: user name is empty"})
    async with members(lambda *_: nameless) as (etcd, _):
        with pytest.raises(EtcdRejected, match="asks for a user and a password"):
            await etcd.read("k")


async def test_a_user_where_none_is_asked_for_does_no_harm_and_is_there_when_one_is() -> None:
    users = Users()
    asks = False

    def answer(path: str, body: dict[str, Any]) -> object:
        if path == "/v3/auth/authenticate" and not asks:
            return (400, {"code": 9, "message": "etcdserver: authentication is not enabled"})
        if asks and path == "/v3/kv/txn" and not server.requests[-1][2]:
            return (400, {"code": 3, "message": "etcdserver: user name is empty"})
        return users(path, body)

    async with members(answer, user="me", password="secret") as (etcd, [server]):
        assert await etcd.swap("k", 5, b"new") == Swapped(8)
        assert await etcd.swap("k", 5, b"new") == Swapped(8)
        assert server.paths() == ["/v3/auth/authenticate", "/v3/kv/txn", "/v3/kv/txn"]
        asks = True
        assert await etcd.swap("k", 5, b"new") == Swapped(8)
        assert [token for _, _, token in server.requests[3:]] == ["", "", "t1"]


async def test_a_server_of_another_kind_is_named() -> None:
    async with members(lambda *_: text(404, b"not found")) as (etcd, _):
        with pytest.raises(EtcdRejected, match=r"is not an etcd with the v3 API \(it answers 404\)"):
            await etcd.read("k")

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-x\r\n\r\n")

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    with pytest.raises(EtcdError, match=r"does not answer in HTTP .*Is that etcd's client port\?"):
        await Etcd([server.sockets[0].getsockname()[:2]]).read("k")
    server.close()
