"""Commands over the Kafka door at listeners that want TLS and authentication."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.certificates import Authority
from tests.cli.conftest import Cli, Outcome

import headrace
from headrace.cli.over_http import Api

PASSWORD = "blue fish"
CLEAN = (
    "HEADRACE_USER", "HEADRACE_PASSWORD_FILE", "HEADRACE_TOKEN", "HEADRACE_TLS", "HEADRACE_TLS_CA",
    "HEADRACE_SASL_MECHANISM",
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("login")


@pytest.fixture(scope="module")
def authority(folder: Path) -> Authority:
    return Authority(folder)


@pytest.fixture(scope="module")
def headrace_broker(authority: Authority) -> Iterator[headrace.Broker]:
    cert, key = authority.issue("localhost", "127.0.0.1")
    with headrace.Broker(
        kafka_protocol="SASL_SSL",
        kafka_mechanisms="SCRAM-SHA-256,SCRAM-SHA-512,PLAIN,OAUTHBEARER",
        kafka_listeners="clear=SASL_PLAINTEXT://127.0.0.1:0?mechanisms=SCRAM-SHA-256,open=PLAINTEXT://127.0.0.1:0",
        tls_cert=cert,
        tls_key=key,
        authentication_delay_max_ms=1,
        nsq="off",
    ) as broker:
        yield broker


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


@pytest.fixture
def as_ann(cli: Cli, folder: Path, headrace_broker: headrace.Broker, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Runs commands; the user is there, with a password and a token in files."""
    for name in CLEAN:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HEADRACE_HTTP", headrace_broker.http)
    if not (folder / "password").exists():
        password = written(folder / "password", PASSWORD + "\n")
        assert cli("user", "create", "ann", "--password-file", password).code == 0
        made = cli("token", "create", "ann", "--json").json
        written(folder / "token", made["token"] + "\n")
        written(folder / "wrong", "red fish\n")
    return cli


def failed(outcome: Outcome, *words: str) -> None:
    assert outcome.code == 1
    assert len(outcome.err.splitlines()) == 1, outcome.err
    assert all(word in outcome.err for word in words), outcome.err
    assert PASSWORD not in outcome.err


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "scram-sha-512", "PLAIN", "token"])
def test_messages_go_in_and_out_over_tls(as_ann: Cli, folder: Path, authority: Authority, mechanism: str) -> None:
    who: list[object] = ["--tls-ca", authority.path]
    if mechanism == "token":
        who += ["--token-file", folder / "token"]
    else:
        who += ["--user", "ann", "--password-file", folder / "password", "--sasl-mechanism", mechanism]
    topic = f"by-{mechanism}"
    assert as_ann("topic", "create", topic, *who).code == 0
    sent = as_ann("produce", topic, *who, stdin=b"one\ntwo\n")
    assert sent.code == 0, sent.err
    assert as_ann("consume", topic, *who).text == "one\ntwo\n"
    assert topic in as_ann("topic", "list", *who).text


def test_scram_goes_without_tls_by_the_environment(
    as_ann: Cli, folder: Path, headrace_broker: headrace.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_BOOTSTRAP", headrace_broker.kafka_listener("clear"))
    monkeypatch.setenv("HEADRACE_USER", "ann")
    monkeypatch.setenv("HEADRACE_PASSWORD_FILE", str(folder / "password"))
    assert as_ann("topic", "create", "clear").code == 0
    assert as_ann("produce", "clear", stdin=b"one\n").code == 0
    assert as_ann("consume", "clear", "--group", "readers").text == "one\n"
    assert as_ann("group", "list").code == 0


def test_a_password_may_come_before_the_messages(
    as_ann: Cli, headrace_broker: headrace.Broker, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.setenv("HEADRACE_BOOTSTRAP", headrace_broker.kafka_listener("clear"))
    who = ["--user", "ann", "--password-file"]
    assert as_ann("topic", "create", "behind", *who, folder / "password").code == 0
    sent = as_ann("produce", "behind", *who, "-", stdin=PASSWORD.encode() + b"\none\ntwo\n")
    assert sent.code == 0, sent.err
    assert as_ann("consume", "behind", *who, folder / "password").text == "one\ntwo\n"


def test_without_a_password_file_messages_are_not_taken_for_a_password(
    as_ann: Cli, headrace_broker: headrace.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_BOOTSTRAP", headrace_broker.kafka_listener("clear"))
    failed(as_ann("produce", "clear", "--user", "ann", stdin=b"one\n"), "--password-file")


def test_a_trace_shows_who_asks_at_both_doors(
    as_ann: Cli, folder: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    get = Api.get

    def record(api: Api, path: str, **query: object) -> object:
        asked.append(api._login)
        return get(api, path, **query)

    monkeypatch.setattr(Api, "get", record)
    who = ["--tls-ca", authority.path, "--user", "ann", "--password-file", folder / "password"]
    assert as_ann("topic", "create", "traced", *who).code == 0
    assert as_ann("produce", "traced", *who, stdin=b"one\n").code == 0
    found = as_ann("trace", "traced/0/0", *who)
    assert found.code == 0, found.err
    assert asked
    assert all(each == {"Authorization": "Basic YW5uOmJsdWUgZmlzaA=="} for each in asked)


def clear(broker: headrace.Broker, folder: Path, ca: str) -> list[object]:
    return ["--bootstrap", broker.kafka_listener("clear")]


def encrypted(broker: headrace.Broker, folder: Path, ca: str) -> list[object]:
    return ["--bootstrap", broker.kafka, "--tls-ca", ca]


def unprotected(broker: headrace.Broker, folder: Path, ca: str) -> list[object]:
    return ["--bootstrap", broker.kafka_listener("open")]


def password(broker: headrace.Broker, folder: Path, ca: str) -> list[object]:
    return ["--user", "ann", "--password-file", folder / "password"]


Part = Callable[[headrace.Broker, Path, str], list[object]]


@pytest.mark.parametrize(
    ("parts", "more", "words"),
    [
        ((clear,), [], ["wants authentication", "SCRAM-SHA-256", "--user"]),
        ((encrypted,), [], ["wants authentication", "OAUTHBEARER", "--token-file"]),
        ((clear, password), ["--sasl-mechanism", "PLAIN"], ["PLAIN", "TLS"]),
        ((clear, password), ["--sasl-mechanism", "PLAIN", "--sasl-plaintext"], ["does not offer", "SCRAM-SHA-256"]),
        ((clear, password), ["--sasl-mechanism", "SCRAM-SHA-512"], ["does not offer", "SCRAM-SHA-256"]),
        ((unprotected, password), [], ["without SASL", "--user"]),
        ((encrypted, password), ["--token-file", "nowhere"], ["nowhere"]),
    ],
)
def test_what_is_wrong_is_said(
    as_ann: Cli,
    folder: Path,
    authority: Authority,
    headrace_broker: headrace.Broker,
    parts: tuple[Part, ...],
    more: list[object],
    words: list[str],
) -> None:
    who = [each for part in parts for each in part(headrace_broker, folder, authority.path)]
    failed(as_ann("topic", "list", *who, *more), *words)


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"])
@pytest.mark.parametrize("command", [["topic", "list"], ["produce", "nowhere"], ["consume", "nowhere"]])
def test_a_wrong_password_fails_at_once(
    as_ann: Cli, folder: Path, authority: Authority, mechanism: str, command: list[str]
) -> None:
    who = ["--tls-ca", authority.path, "--user", "ann", "--password-file", folder / "wrong"]
    outcome = as_ann(*command, *who, "--sasl-mechanism", mechanism, stdin=b"one\n")
    failed(outcome, "the user is unknown, or the password is wrong")


def test_a_wrong_token_fails_at_once(as_ann: Cli, folder: Path, authority: Authority) -> None:
    failed(as_ann("topic", "list", "--tls-ca", authority.path, "--token-file", folder / "wrong-token"), "wrong-token")
    token = written(folder / "other-token", "hr_nothing.nothing\n")
    failed(as_ann("topic", "list", "--tls-ca", authority.path, "--token-file", token), "refuses")


def test_an_authority_that_is_not_trusted_gets_no_password(as_ann: Cli, folder: Path, tmp_path: Path) -> None:
    who = ["--user", "ann", "--password-file", folder / "password", "--sasl-mechanism", "PLAIN"]
    failed(as_ann("topic", "list", "--tls", *who), "certificate")
    failed(as_ann("topic", "list", "--tls-ca", Authority(tmp_path).path, *who), "certificate")
