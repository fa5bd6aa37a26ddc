"""As whom source, sink and jobs come to a broker, without Spark."""

from __future__ import annotations

import asyncio
import json
import pickle
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tests.pipeline.guarded import PASSWORD, Guarded, guarded_broker, write_secret

from headrace.client.errors import AuthenticationError, BrokerError
from headrace.errors import HeadraceError
from headrace.pipeline.broker import BrokerOrigin, make_client
from headrace.pipeline.connection_options import REFUSED
from headrace.pipeline.jobs.audit_queues import asked_over_http
from headrace.pipeline.jobs.http_door import HttpDoor
from headrace.pipeline.jobs.rounds import connection, connection_of_writer
from headrace.pipeline.login import read_credentials
from headrace.pipeline.option_values import InvalidOption
from headrace.pipeline.options import SourceOptions, parse, parse_sink

PLACE = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"}
VARIABLES = ("HEADRACE_USER", "HEADRACE_PASSWORD_FILE", "HEADRACE_TOKEN", "HEADRACE_TOKEN_FILE")


@pytest.fixture(autouse=True)
def _nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with guarded_broker(tmp_path_factory.mktemp("guarded")) as found:
        yield found


def options(**given: str) -> SourceOptions:
    return parse({**PLACE, **given}, streaming=False)


# --- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*REFUSED, "kafka.sasl.login.callback.handler.class", "kafka.SASL.kerberos.x"])
@pytest.mark.parametrize("sink", [False, True])
def test_names_of_other_clients_are_answered_without_their_values(name: str, sink: bool) -> None:
    given = {"kafka.bootstrap.servers": "x:1", name: PASSWORD}
    with pytest.raises(InvalidOption) as refused:
        parse_sink(given, streaming=False) if sink else parse(given, streaming=False)
    assert PASSWORD not in str(refused.value)
    assert name.lower() in str(refused.value)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"user": "ann", "tokenFile": "/t"}, "two ways to come in"),
        ({"passwordFile": "/p"}, "Give user, too"),
        ({"passwordFile": "/p", "tokenFile": "/t"}, "two ways to come in"),
        ({"tokenFile": "/t", "kafka.sasl.mechanism": "PLAIN"}, "is PLAIN, which is for passwords"),
        ({"user": "ann", "kafka.sasl.mechanism": "OAUTHBEARER"}, "which is for tokens"),
        ({"user": "ann", "kafka.security.protocol": "SSL"}, "Use SASL_SSL"),
        ({"tokenFile": "/t", "kafka.security.protocol": "PLAINTEXT"}, "Use SASL_PLAINTEXT"),
        ({"kafka.sasl.mechanism": "GSSAPI"}, "one of scram-sha-256, scram-sha-512, plain, oauthbearer"),
        ({"kafka.security.protocol": "SASL_PLAINTEXT", "kafka.ssl.truststore.location": "/ca"}, "says SASL_PLAINTEXT"),
    ],
)
def test_what_makes_no_sense_is_named(given: dict[str, str], reason: str) -> None:
    with pytest.raises(InvalidOption, match=reason):
        options(**given)


def test_names_of_kafka_choose_the_way() -> None:
    found = options(**{"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "plain", "user": "ann"})
    assert (found.tls, found.mechanism, found.must_log_in) == (True, "PLAIN", True)
    found = options(**{"kafka.sasl.mechanism": "OAUTHBEARER"})
    assert (found.tls, found.must_log_in) == (False, True)
    sink = parse_sink({"kafka.bootstrap.servers": "x:1", "tokenFile": "/t"}, streaming=False)
    assert (sink.token_file, sink.user) == ("/t", "")


# --- secrets ----------------------------------------------------------------------------------------------------------


def test_a_secret_is_read_by_who_connects_and_is_no_part_of_the_options(tmp_path: Path) -> None:
    file = write_secret(tmp_path / "password", PASSWORD)
    found = options(user="ann", passwordFile=str(file))
    assert PASSWORD.encode() not in pickle.dumps(found)
    assert PASSWORD not in repr(found)
    credentials = read_credentials(found)
    assert credentials is not None
    assert (credentials.user, credentials.password) == ("ann", PASSWORD)
    assert PASSWORD not in repr(credentials)
    # It may change without a restart.
    write_secret(file, "another one")
    assert (credentials := read_credentials(found)) is not None
    assert credentials.password == "another one"


def test_the_environment_counts_where_options_are_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_credentials(options()) is None
    monkeypatch.setenv("HEADRACE_PASSWORD_FILE", str(write_secret(tmp_path / "password", PASSWORD)))
    found = read_credentials(options(user="ann"))
    assert found is not None
    assert (found.user, found.password) == ("ann", PASSWORD)
    monkeypatch.setenv("HEADRACE_USER", "bob")
    found = read_credentials(options())
    assert found is not None
    assert found.user == "bob"
    assert (found := read_credentials(options(user="ann"))) is not None
    assert found.user == "ann"
    # As nobody: said so, or at a listener without SASL.
    assert read_credentials(options(user="")) is None
    assert read_credentials(options(**{"kafka.security.protocol": "SSL"})) is None
    monkeypatch.setenv("HEADRACE_TOKEN", "from-the-environment")
    assert (found := read_credentials(options())) is not None
    assert found.token == "from-the-environment"
    monkeypatch.setenv("HEADRACE_TOKEN_FILE", str(write_secret(tmp_path / "token", "from-a-file")))
    assert (found := read_credentials(options())) is not None
    assert found.token == "from-a-file"


def test_a_secret_that_is_missing_is_reported(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="no password for the user 'ann'"):
        read_credentials(options(user="ann"))
    with pytest.raises(InvalidOption, match="nowhere cannot be read: No such file"):
        read_credentials(options(user="ann", passwordFile=str(tmp_path / "nowhere")))
    with pytest.raises(InvalidOption, match="no secret in the first line"):
        read_credentials(options(tokenFile=str(write_secret(tmp_path / "empty", ""))))
    with pytest.raises(InvalidOption, match="wants a login, and there is none"):
        read_credentials(options(**{"kafka.security.protocol": "SASL_SSL"}))
    (tmp_path / "binary").write_bytes(b"blue\xff\n")
    with pytest.raises(InvalidOption) as refused:
        read_credentials(options(tokenFile=str(tmp_path / "binary")))
    assert "blue" not in str(refused.value)


def test_a_login_goes_to_its_own_broker_alone() -> None:
    given = {"user": "ann", "passwordFile": "/p", "KAFKA.SASL.mechanism": "PLAIN", "startingOffsets": "latest"}
    login = {name: given[name] for name in ("user", "passwordFile", "KAFKA.SASL.mechanism")}
    assert connection(given) == login
    assert connection_of_writer(given, "a:1", "a:1") == login
    assert connection_of_writer(given, "", "b:1") == login
    assert connection_of_writer(given, "a:1", "b:1") == {}


# --- a broker ---------------------------------------------------------------------------------------------------------


def ask_topics(given: dict[str, str]) -> set[str]:
    async def ask() -> set[str]:
        async with make_client(parse({**given, "subscribe": "t"}, streaming=False)) as client:
            return {each.name for each in await client.cluster.topics()}

    return asyncio.run(ask())


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_client_sees_what_its_user_may(guarded: Guarded, mechanism: str) -> None:
    async def fill() -> None:
        async with make_client(parse({**guarded.admin, "subscribe": "t"}, streaming=False)) as client:
            for topic in ("events", "payroll"):
                await client.admin.ensure_topic(topic, 1)

    asyncio.run(fill())
    assert ask_topics(guarded.login | {"kafka.sasl.mechanism": mechanism}) == {"events"}
    assert {"events", "payroll"} <= ask_topics(guarded.admin)


def test_refusals_name_no_secret(guarded: Guarded, tmp_path: Path) -> None:
    wrong = guarded.login | {"passwordFile": str(write_secret(tmp_path / "wrong", "red fish that nothing shows"))}
    with pytest.raises(AuthenticationError) as refused:
        ask_topics(wrong)
    assert "red fish" not in str(refused.value)
    # A token is readable on the way: only over TLS.
    with pytest.raises(AuthenticationError) as refused:
        ask_topics({"kafka.bootstrap.servers": guarded.broker.kafka, "tokenFile": str(guarded.token_file)})
    assert guarded.token not in str(refused.value)

    async def write() -> None:
        async with make_client(parse({**guarded.login, "subscribe": "t"}, streaming=False)) as client:
            await client.admin.create_topic("payroll-2", 1)

    with pytest.raises(BrokerError, match="right CREATE on the topic 'payroll-2'"):
        asyncio.run(write())


def test_sizes_that_the_user_may_not_see_leave_partitions_whole(guarded: Guarded) -> None:
    async def ask(given: dict[str, str]) -> int:
        async with make_client(parse({**given, "subscribe": "t"}, streaming=False)) as client:
            await client.cluster.topics()
            return len(await BrokerOrigin(client, "broker", 10).sizes([]))

    assert asyncio.run(ask(guarded.login)) == 0
    assert asyncio.run(ask(guarded.admin)) > 0


def door(guarded: Guarded, **given: str) -> HttpDoor:
    place = {"kafka.bootstrap.servers": guarded.broker.kafka, "subscribe": "t"}
    return HttpDoor(guarded.broker.http, parse({**place, **given}, streaming=False))


def test_the_http_door_is_asked_as_the_same_user(guarded: Guarded) -> None:
    password = {"user": "spark", "passwordFile": str(guarded.password_file)}
    ask_topics(guarded.admin)
    for given in (password, {"tokenFile": str(guarded.token_file)}):
        assert asked_over_http(door(guarded, **given), ["events"]) == []
    with pytest.raises(HeadraceError, match="not authorized"):
        door(guarded).get("/v1/topics/events/queues")
    with pytest.raises(HeadraceError, match="payroll"):
        asked_over_http(door(guarded, **password), ["payroll"])


def test_a_redirect_is_followed_with_the_login_within_a_bound() -> None:
    asked: list[tuple[str, str]] = []

    class Follower(BaseHTTPRequestHandler):
        leader: ClassVar[str] = ""

        def do_GET(self) -> None:
            asked.append((str(self.server.server_port), self.headers["Authorization"]))  # type: ignore[attr-defined]
            body = json.dumps({"queues": []}).encode()
            self.send_response(307 if self.leader else 200)
            if self.leader:
                self.send_header("Location", f"http://{self.leader}{self.path}")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    class Leader(Follower):
        pass

    with HTTPServer(("127.0.0.1", 0), Follower) as first, HTTPServer(("127.0.0.1", 0), Leader) as second:
        for each in (first, second):
            threading.Thread(target=each.serve_forever, daemon=True).start()
        Follower.leader = f"127.0.0.1:{second.server_port}"
        Leader.leader = ""
        try:
            place = f"127.0.0.1:{first.server_port}"
            credentials = options(user="")
            found = HttpDoor(place, credentials)
            found._headers = {"Authorization": "Bearer x"}
            assert found.get("/v1/topics/t/queues") == {"queues": []}
            assert asked == [(str(first.server_port), "Bearer x"), (str(second.server_port), "Bearer x")]
            asked.clear()
            Leader.leader = place
            with pytest.raises(HeadraceError, match="queues"):
                HttpDoor(place, credentials).get("/v1/topics/t/queues")
            assert len(asked) == 3
        finally:
            first.shutdown()
            second.shutdown()
