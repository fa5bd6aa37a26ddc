from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.certificates import Authority
from tests.cli.conftest import Cli

import headrace
from headrace.embedded import Broker


def test_create_list_describe_delete(cli: Cli):
    assert cli("topic", "create", "orders", "--partitions", 3, "--set", "retention.ms=1000").code == 0
    listed = cli("topic", "list", "--json").json
    assert [(topic["name"], topic["partitions"]) for topic in listed] == [("orders", 3)]
    assert cli("topic", "list").lines[1].split()[:2] == ["orders", "3"]

    cli("produce", "orders", "--partition", 1, stdin=b"a\nb\n")
    described = cli("topic", "describe", "orders", "--json").json
    assert [(p["partition"], p["start"], p["end"]) for p in described["partitions"]] == [
        (0, 0, 0),
        (1, 0, 2),
        (2, 0, 0),
    ]
    assert described["config"] == {"retention.ms": "1000"}
    assert "retention.ms=1000" in cli("topic", "describe", "orders").text

    assert cli("topic", "delete", "orders", "--yes").code == 0
    assert cli("topic", "list", "--json").json == []


def test_settings(cli: Cli):
    cli("topic", "create", "orders")
    assert cli("topic", "config", "orders", "--set", "retention.ms=5", "--set", "cleanup.policy=compact").code == 0
    settings = {each["name"]: each for each in cli("topic", "config", "orders", "--json").json}
    assert settings["retention.ms"]["value"] == "5"
    assert settings["retention.ms"]["default"] is False
    assert settings["segment.bytes"]["default"] is True
    assert cli("topic", "config", "orders", "--unset", "retention.ms").code == 0
    settings = {each["name"]: each for each in cli("topic", "config", "orders", "--json").json}
    assert settings["retention.ms"]["default"] is True
    assert settings["cleanup.policy"]["value"] == "compact"
    assert cli("topic", "config", "orders", "--partitions", 4).code == 0
    assert cli("topic", "list", "--json").json[0]["partitions"] == 4


def test_what_goes_wrong_is_one_line(cli: Cli):
    cli("topic", "create", "orders")
    for arguments, word in (
        (("topic", "create", "orders"), "orders"),
        (("topic", "create", "no/slash"), "no/slash"),
        (("topic", "create", "x", "--set", "nonsense=1"), "nonsense"),
        (("topic", "create", "x", "--set", "nonsense"), "NAME=VALUE"),
        (("topic", "describe", "nothing"), "nothing"),
        (("topic", "config", "nothing"), "nothing"),
        (("topic", "config", "orders", "--set", "retention.ms=soon"), "retention.ms"),
        (("topic", "config", "orders", "--partitions", 1), "partition"),
        (("topic", "delete", "nothing", "--yes"), "nothing"),
    ):
        outcome = cli(*arguments)
        assert outcome.code == 1, arguments
        assert outcome.out == b""
        assert len(outcome.err.splitlines()) == 1, outcome.err
        assert word in outcome.err


def test_no_broker_is_said(cli: Cli):
    outcome = cli("topic", "list", "--bootstrap", "127.0.0.1:1")
    assert outcome.code == 1
    assert "127.0.0.1:1" in outcome.err
    assert len(outcome.err.splitlines()) == 1


def test_a_table_in_a_pipe_is_plain_lines(cli: Cli):
    cli("topic", "create", "orders", "--partitions", 12)
    cli("topic", "create", "b")
    shown = cli("topic", "list").lines
    assert [line.split() for line in shown] == [
        ["topic", "partitions", "bytes"],
        ["b", "1", "0"],
        ["orders", "12", "0"],
    ]
    assert len({len(line) for line in shown}) == 1
    settings = cli("topic", "config", "orders").lines
    assert all(line == line.rstrip() for line in settings)


def test_without_a_broker_it_is_said_how_to_name_one(cli: Cli):
    done = cli("topic", "list", "--bootstrap", "127.0.0.1:1")
    assert done.code == 1
    assert "cannot reach 127.0.0.1:1: Connection refused. Is the broker running? See --bootstrap." in done.err
    assert "no address of a broker is given" in cli("topic", "list", "--bootstrap", "").err


def test_over_tls_it_is_said_what_may_be_missing(cli: Cli, tmp_path: Path):
    authority = Authority(tmp_path)
    cert, key = authority.issue("localhost", "127.0.0.1")
    with headrace.Broker(tls_cert=cert, tls_key=key, tls_client_ca=authority.path) as broker:
        at = ("topic", "list", "--bootstrap", broker.kafka)
        assert "--tls-ca reaches a broker that speaks TLS" in cli(*at).err
        assert "--tls-cert and --tls-key show a certificate" in cli(*at, "--tls-ca", authority.path).err
        client_cert, client_key = authority.issue("someone")
        shown = cli(*at, "--tls-ca", authority.path, "--tls-cert", client_cert, "--tls-key", client_key)
        assert (shown.code, shown.lines) == (0, ["topic  partitions  bytes"])


def test_an_interrupt_at_the_question_ends_the_command(cli: Cli, headrace_broker: Broker):
    cli("topic", "create", "t")
    outside, inside = os.openpty()
    command = [sys.executable, "-m", "headrace.cli", "topic", "delete", "t", "--bootstrap", headrace_broker.kafka]
    with subprocess.Popen(command, stdin=inside, stdout=inside, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        asked = b""
        while b"[y/N]" not in asked:
            asked += os.read(process.stderr.fileno(), 1_000)
        process.send_signal(signal.SIGINT)
        try:
            assert process.wait(20) == 1
        finally:
            process.kill()
    os.close(outside)
    os.close(inside)
    assert [topic["name"] for topic in cli("topic", "list", "--json").json] == ["t"]
