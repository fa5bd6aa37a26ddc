"""`headrace user`, `token`, `acl`, `role` and `audit`: over the HTTP door, and on a stopped broker's directory."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Cli, Outcome

from headrace.embedded import Broker


@pytest.fixture(autouse=True)
def _http(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HEADRACE_USER", "HEADRACE_PASSWORD_FILE", "HEADRACE_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    if "headrace_broker" in request.fixturenames and request.node.get_closest_marker("headrace"):
        broker: Broker = request.getfixturevalue("headrace_broker")
        monkeypatch.setenv("HEADRACE_HTTP", broker.http)


def done(outcome: Outcome) -> Outcome:
    assert outcome.code == 0, outcome.err
    return outcome


def failed(outcome: Outcome, word: str) -> None:
    assert outcome.code == 1
    assert len(outcome.err.splitlines()) == 1, outcome.err
    assert word in outcome.err


@pytest.mark.headrace(http="127.0.0.1:0", audit="on")
def test_users(cli: Cli, tmp_path: Path):
    secret = tmp_path / "secret"
    secret.write_text("my-password\nnot this\n")
    secret.chmod(0o600)
    done(cli("user", "create", "ann", "--password-file", secret))
    done(cli("user", "create", "bob", stdin=b"other-password\n"))
    done(cli("user", "create", "cid", "--no-password", "--role", "viewer"))
    assert [line.split() for line in cli("user", "list").lines] == [
        ["name", "passwords", "tokens"],
        ["ann", "SCRAM-SHA-256,", "SCRAM-SHA-512", "0"],
        ["bob", "SCRAM-SHA-256,", "SCRAM-SHA-512", "0"],
        ["cid", "0"],
    ]
    failed(cli("user", "create", "ann", "--no-password"), "there is a user 'ann' already")
    failed(cli("user", "create", "zoe", stdin=b"\n"), "no password")
    failed(cli("user", "create", "zoe", "--no-password", "--password-file", secret), "--no-password")
    done(cli("user", "set-password", "ann", "--keep-old", "1h", stdin=b"second\n"))
    shown = done(cli("user", "show", "ann")).lines
    assert len(shown) == 4
    assert sum("until" in line for line in shown) == 2
    found = done(cli("user", "show", "cid", "--json")).json
    assert found["roles"] == [{"user": "cid", "role": "viewer", "name": "*", "group": "*"}]
    failed(cli("user", "show", "zoe"), "no user 'zoe'")
    done(cli("user", "delete", "bob", "--yes"))
    failed(cli("user", "delete", "bob", "--yes"), "no user 'bob'")
    failed(cli("user", "set-password", "bob", stdin=b"p\n"), "no user 'bob'")
    entries = cli("audit", "--action", "user.*", "--json").json
    assert [(each["action"], each["name"]) for each in entries] == [
        ("user.delete", "bob"),
        ("user.password", "ann"),
        ("user.create", "cid"),
        ("user.create", "bob"),
        ("user.create", "ann"),
    ]
    assert cli("audit", "--name", "cid", "--limit", "1").lines[1].split()[2:] == [
        *("ANONYMOUS", "127.0.0.1", "http", "role.grant", "user", "cid", "ok", "viewer")
    ]
    assert cli("audit", "--by", "ann").lines[1:] == []


@pytest.mark.headrace(http="127.0.0.1:0")
def test_tokens(cli: Cli):
    done(cli("user", "create", "ann", "--no-password"))
    plain = done(cli("token", "create", "ann")).text.strip()
    assert plain.startswith("hr_")
    made = done(
        cli("token", "create", "ann", "--expires", "1d", "--scope", "write:topic:t*", "--note", "CI", "--json")
    ).json
    assert made["scope"] == ["write:topic:t*"]
    signing = done(cli("token", "create", "ann", "--signing")).lines
    assert signing[1].split()[2] == signing[0].split("_")[1]
    assert signing[2].split()[2] == signing[0].split("_")[2]
    listed = cli("token", "list", "ann", "--json").json
    assert {each["id"] for each in listed} >= {made["id"]}
    assert len(listed) == 3
    assert plain.rpartition("_")[2] not in cli("token", "list").text
    done(cli("token", "revoke", plain, made["id"]))
    assert len(cli("token", "list").lines) == 2
    failed(cli("token", "revoke", made["id"]), "no token")
    failed(cli("token", "create", "zoe"), "no user 'zoe'")
    failed(cli("token", "create", "ann", "--scope", "x"), "OPERATION:RESOURCE:NAME")


@pytest.mark.headrace(http="127.0.0.1:0")
def test_rules_and_roles(cli: Cli):
    done(cli("acl", "grant", "ann", "read,write", "topic", "t*"))
    done(cli("acl", "grant", "ann", "write", "topic", "t1", "--deny", "--host", "10.0.0.1"))
    assert done(cli("acl", "grant", "ann", "read", "topic", "t*", "--json")).json == {"added": 0}
    assert [line.split() for line in cli("acl", "list").lines[1:]] == [
        ["allow", "ann", "*", "read", "topic", "t*"],
        ["allow", "ann", "*", "write", "topic", "t*"],
        ["deny", "ann", "10.0.0.1", "write", "topic", "t1"],
    ]
    assert len(cli("acl", "list", "--name", "t*").lines) == 3
    assert len(cli("acl", "list", "--name", "t").lines) == 1
    allowed = done(cli("acl", "check", "ann", "write", "topic", "t1"))
    assert allowed.lines == [
        "allowed: by the rule: allow ann WRITE on topic t*",
        "(authorization is off: nothing is refused)",
    ]
    denied = cli("acl", "check", "ann", "write", "topic", "t1", "--host", "10.0.0.1")
    assert denied.code == 1
    assert denied.lines[0] == "not allowed: by the rule: deny ann WRITE on topic t1 from 10.0.0.1"
    assert cli("acl", "check", "bob", "write", "topic", "t1").lines[0] == (
        "not allowed: no rule allows bob WRITE on the topic 't1'"
    )
    done(cli("role", "grant", "bob", "producer", "--of", "t*"))
    assert cli("role", "list").lines[1].split(maxsplit=1) == ["bob", "producer of t*"]
    assert cli("acl", "check", "bob", "write", "topic", "t1").lines[0] == (
        "allowed: by the rule: allow bob WRITE on topic t* (role producer of t*)"
    )
    failed(cli("role", "revoke", "bob", "producer"), "does not have the role producer of *")
    done(cli("role", "revoke", "bob", "producer", "--of", "t*"))
    assert cli("role", "list", "bob").lines[1:] == []
    done(cli("acl", "revoke", "ann", "write", "topic", "t1"))
    failed(cli("acl", "revoke", "ann", "write", "topic", "t1"), "no rule")
    done(cli("acl", "revoke", "ann", "--yes"))
    assert cli("acl", "list").lines[1:] == []
    for arguments, word in (
        (("acl", "grant", "ann", "fly", "topic", "t"), "no operation 'fly'"),
        (("acl", "grant", "ann", "read", "moon", "t"), "no kind of resource 'moon'"),
        (("acl", "grant", "ann", "write", "group", "g"), "no write on a group"),
        (("acl", "revoke", "ann"), "no rule"),
        (("role", "grant", "ann", "king"), "no role 'king'"),
    ):
        failed(cli(*arguments), word)


@pytest.fixture
def closed(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    """A broker that lets in whom it knows."""
    data = tmp_path / "data"
    done(cli("user", "create", "root", "--data", data, stdin=b"root-password\n"))
    with Broker(data, kafka="off", nsq="off", authorization="on", super_users="root") as broker:
        monkeypatch.setenv("HEADRACE_HTTP", broker.http)
        yield broker


def test_who_comes_in(cli: Cli, closed: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    failed(cli("user", "list"), "takes the right DESCRIBE")
    secret = tmp_path / "secret"
    secret.write_text("root-password")
    root = ("--user", "root", "--password-file", secret)
    failed(cli("user", "list", "--user", "root", stdin=b"wrong\n"), "wrong")
    outcome = cli("user", "list", *root)
    assert "Close it to them: chmod 600" in outcome.err
    secret.chmod(0o600)
    assert done(cli("user", "list", *root)).lines[1].startswith("root")
    assert len(done(cli("user", "list", "--user", "root", stdin=b"root-password\n")).lines) == 2
    # The one that is made and the one that makes it have a password each.
    as_root = ("--user", "root", "--as-password-file", secret)
    done(cli("user", "create", "ann", *as_root, "--password-file", "-", stdin=b"ann-password\n"))
    token = done(cli("token", "create", "ann", *root)).text.strip()
    monkeypatch.setenv("HEADRACE_TOKEN", token)
    failed(cli("acl", "list"), "takes the right DESCRIBE")
    monkeypatch.setenv("HEADRACE_USER", "root")
    monkeypatch.setenv("HEADRACE_PASSWORD_FILE", str(secret))
    done(cli("role", "grant", "ann", "admin"))
    monkeypatch.delenv("HEADRACE_USER")
    assert done(cli("acl", "list")).lines[1:] == []
    monkeypatch.delenv("HEADRACE_TOKEN")
    file = tmp_path / "token"
    file.write_text(token)
    file.chmod(0o600)
    done(cli("quota", "list", "--token-file", file))
    # Where --user means something else, the longer name is there.
    done(cli("quota", "list", "--user", "ann", "--as-user", "root", "--as-password-file", secret))
    failed(cli("acl", "list", "--token-file", file, "--user", "root"), "exclude each other")


def test_the_first_administrator(cli: Cli, tmp_path: Path):
    data = tmp_path / "data"
    done(cli("user", "create", "admin", "--role", "admin", "--data", data, stdin=b"my-password\n"))
    assert stat.S_IMODE(data.stat().st_mode) == 0o700
    assert done(cli("role", "list", "--data", data)).lines[1].split() == ["admin", "admin"]
    assert cli("acl", "check", "admin", "alter", "cluster", "kafka-cluster", "--data", data).code == 0
    entry = done(cli("audit", "--action", "user.create", "--data", data, "--json")).json[0]
    assert (entry["door"], entry["name"]) == ("offline", "admin")
    assert entry["user"]
    with Broker(data, kafka="off", nsq="off"):
        failed(cli("user", "list", "--data", data), "is in use")
    (data / "cluster-identity").touch()
    failed(cli("user", "list", "--data", data), "a node in a group")
    failed(cli("user", "list", "--data", "/dev/null/x"), "/dev/null/x")


def test_https(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from tests.certificates import Authority

    authority = Authority(tmp_path)
    certificate, key = authority.issue("127.0.0.1")
    settings: dict[str, Any] = {"tls_cert": certificate, "tls_key": key, "http_tls": True}
    with Broker(kafka="off", nsq="off", **settings) as broker:
        monkeypatch.setenv("HEADRACE_HTTP", f"https://{broker.http}")
        failed(cli("user", "list"), "not trusted")
        done(cli("user", "list", "--tls-ca", authority.path))
