"""The framework at a broker that wants to know who comes, by all of its doors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from tests.certificates import Authority
from tests.cli.test_over_http import Node
from tests.waiting import SECONDS

import headrace
from headrace.client import Mechanism
from headrace.sdk import App, PublishFailed, Unsuited
from headrace.sdk.http_door import HttpDoor, ask
from headrace.sdk.login import Login
from headrace.sdk.nsq_wire import NsqConnection, NsqError
from headrace.sdk.system import parse

PASSWORD = "blue fish"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("login")


@pytest.fixture(scope="module")
def authority(folder: Path) -> Authority:
    return Authority(folder)


def put(broker: headrace.Broker, method: str, path: str, content: dict[str, object]) -> dict[str, str]:
    body = json.dumps(content).encode()
    request = Request(f"http://{broker.http}{path}", body, {"Content-Type": "application/json"}, method=method)
    with urlopen(request, timeout=SECONDS) as answer:
        found: dict[str, str] = json.loads(answer.read() or b"{}")
    return found


@pytest.fixture(scope="module")
def broker(folder: Path, authority: Authority) -> Iterator[headrace.Broker]:
    cert, key = authority.issue("127.0.0.1")
    settings = {
        "kafka_protocol": "SASL_SSL",
        "kafka_mechanisms": "SCRAM-SHA-256,OAUTHBEARER,PLAIN",
        "nsq_auth_required": True,
        "tls_cert": cert,
        "tls_key": key,
        "authentication_delay_max_ms": 1,
    }
    with headrace.Broker(folder / "data", http="127.0.0.1:0", http_authentication="optional", **settings) as setting_up:
        put(setting_up, "POST", "/v1/users", {"name": "ann", "password": PASSWORD})
        made = put(setting_up, "POST", "/v1/tokens", {"user": "ann"})
    (folder / "password").write_text(PASSWORD + "\n")
    (folder / "wrong").write_text("red fish\n")
    (folder / "token").write_text(made["token"] + "\n")
    more = {"authorization": "on", "super_users": "ann", "http_authentication": "required"}
    with headrace.Broker(folder / "data", http="127.0.0.1:0", **settings, **more) as running:
        yield running


def url_of(broker: headrace.Broker, authority: Authority, who: str, options: str) -> str:
    return f"{broker.url.replace('://', f'://{who}')}&tls_ca={authority.path}&{options}"


@pytest.mark.parametrize("scenario", ["task", "stream", "exactly-once"])
@pytest.mark.parametrize("way", ["scram", "plain", "token"])
async def test_messages_go_both_ways(
    broker: headrace.Broker, folder: Path, authority: Authority, scenario: str, way: str
) -> None:
    if way == "token":
        url = url_of(broker, authority, "", f"token_file={folder / 'token'}")
    else:
        mechanism = "&sasl_mechanism=plain" if way == "plain" else ""
        url = url_of(broker, authority, "ann@", f"password_file={folder / 'password'}{mechanism}")
    app = App(f"shop.{way}.{scenario}", url)
    topic = f"orders-{way}-{scenario}"
    came: asyncio.Queue[bytes] = asyncio.Queue()

    @app.subscribe(topic, scenario=scenario)
    async def handle(raw: bytes) -> None:
        came.put_nowait(raw)

    async with app:
        await app.publish(topic, b"secret")
        assert await asyncio.wait_for(came.get(), SECONDS) == b"secret"


async def test_a_wrong_password_is_an_error_at_once(
    broker: headrace.Broker, folder: Path, authority: Authority
) -> None:
    async with App("shop", url_of(broker, authority, "ann@", f"password_file={folder / 'wrong'}")) as app:
        with pytest.raises(PublishFailed, match="the password is wrong"):
            await app.publish("orders", b"x")
        with pytest.raises(PublishFailed, match="AUTH failed"):
            await app.publish("orders", b"x", delay=1)


async def test_who_says_nothing_is_told_what_is_wanted(broker: headrace.Broker, authority: Authority) -> None:
    async with App("shop", f"{broker.url}&tls_ca={authority.path}") as app:
        with pytest.raises(PublishFailed, match="wants authentication"):
            await app.publish("orders", b"x")


async def test_a_file_that_is_not_there(broker: headrace.Broker, folder: Path, authority: Authority) -> None:
    app = App("shop", url_of(broker, authority, "ann@", f"password_file={folder / 'nowhere'}"))
    with pytest.raises(Unsuited, match="nowhere cannot be read"):
        await app.start()


@pytest.mark.parametrize("rest", ["h", "h?nonsense=1", "h?tls=2"])
def test_a_password_in_a_url_is_refused_and_not_shown(rest: str) -> None:
    with pytest.raises(ValueError, match="password_file") as refused:
        parse(f"headrace://ann:blue-fish@{rest}")
    assert "blue-fish" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("kafka://ann@h?token_file=f", "exclude each other"),
        ("kafka://h?password_file=f", "needs a user"),
        ("kafka://ann@h", "no password"),
        ("kafka://ann@h?password_file=f&sasl_mechanism=GSSAPI", "sasl_mechanism must be one of"),
        ("memory://?token_file=f", "no option token_file"),
    ],
)
def test_urls_that_say_too_much_or_too_little(url: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADRACE_PASSWORD_FILE", raising=False)
    with pytest.raises(ValueError, match=says):
        parse(url)


def test_what_a_url_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_PASSWORD_FILE", "secret")
    found = parse("kafka://a%40b@h,g:1?tls=1&sasl_mechanism=scram-sha-512")
    assert found.kafka == "h:9092,g:1"
    assert found.login == Login("a@b", "secret", mechanism=Mechanism.SCRAM_SHA_512)


async def test_secrets_go_nowhere_in_the_clear(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("hr_x.y\n")
    login = Login(token_file=str(tmp_path / "token"))
    connection = NsqConnection(lambda messages: None, lambda: None)
    for said in (b'{"auth_required": true}', b'{"headrace": 1}'):
        with pytest.raises(NsqError, match="Use TLS"):
            await connection._authenticate(login, said, clear="mq.example.com")
    with pytest.raises(NsqError, match="connection is gone"):
        await connection._authenticate(login, b'{"auth_required": true}', clear="127.0.0.1")
    # An nsqd that asks for nothing is told nothing.
    await connection._authenticate(login, b"OK", clear="mq.example.com")


@pytest.mark.parametrize(("location", "shown"), [("mq.example.com:1", 1), ("", 2)])
def test_who_asks_is_not_shown_where_a_redirect_leads_in_the_clear(location: str, shown: int) -> None:
    with Node() as leader, Node() as node:
        node.statuses, node.location = [307], location or leader.address
        status, _ = ask("GET", f"http://{node.address}/v1/x", SECONDS, None, {"Authorization": "Bearer x"})
        assert status == (307 if location else 200)
        assert len(node.asked) + len(leader.asked) == shown
        for each in (leader, node):
            each.shutdown()


@pytest.mark.parametrize(("address", "shows"), [("mq.example.com:1", False), ("https://mq.example.com:1", True)])
async def test_the_http_door_is_shown_who_asks_over_tls(
    address: str, shows: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("hr_x.y\n")
    asked: list[tuple[str, object]] = []

    def record(
        method: str, url: str, seconds: float, content: object, headers: object, tls: object
    ) -> tuple[int, object]:
        asked.append((url, headers))
        return 200, {"cluster_id": "c"}

    monkeypatch.setattr("headrace.sdk.http_door.ask", record)
    await HttpDoor(address, "c", Login(token_file=str(tmp_path / "token"))).check()
    url = address if shows else f"http://{address}"
    assert asked == [(f"{url}/v1/cluster", {"Authorization": "Bearer hr_x.y"} if shows else {})]
