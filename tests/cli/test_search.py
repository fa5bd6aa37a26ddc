from __future__ import annotations

import pytest
from tests.cli.conftest import Cli

from headrace.embedded import Broker

pytestmark = pytest.mark.headrace(http="127.0.0.1:0")


@pytest.fixture(autouse=True)
def _http(headrace_broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_HTTP", headrace_broker.http)


@pytest.fixture(autouse=True)
def _orders(cli: Cli) -> None:
    cli("topic", "create", "orders", "--set", "index=key,id,tags,header:color")
    for number in range(5):
        headers = (f"UNIQ_KEY=U{number}", "TAGS=paid", f"color={'red' if number % 2 else 'blue'}")
        options = [each for header in headers for each in ("--header", header)]
        assert cli("produce", "orders", *options, "--key", f"k{number % 3}", stdin=b"%d\n" % number).code == 0


def test_each_way_to_search(cli: Cli):
    for options, expected in (
        (("--key", "k1"), ["1", "4"]),
        (("--unique-key", "U3"), ["3"]),
        (("--id", "U3"), ["3"]),
        (("--id", "orders/0/2"), ["2"]),
        (("--tag", "paid"), ["0", "1", "2", "3", "4"]),
        (("--tag", "paid", "--limit", 2), ["0", "1"]),
        (("--header", "color=red", "--key", "k1"), ["1"]),
        (("--key", "k1", "--since", "-1h"), ["1", "4"]),
        (("--key", "k1", "--until", "-1h"), []),
        (("--key", "none"), []),
    ):
        assert [each["value"] for each in cli("search", "orders", *options, "--json").json] == expected, options


def test_a_table(cli: Cli):
    table = cli("search", "orders", "--unique-key", "U3")
    assert table.code == 0
    assert table.lines[0].split() == ["id", "time", "key", "value"]
    assert table.lines[1].split()[0] == "orders/0/3"
    nothing = cli("search", "orders", "--key", "none")
    assert (nothing.code, nothing.out) == (0, b"")
    assert "headrace timer list" in nothing.err


def test_what_goes_wrong_is_one_line(cli: Cli):
    for options, word in (
        (("orders",), "--unique-key"),
        (("nothing", "--key", "k"), "nothing"),
        (("orders", "--header", "x"), "NAME=VALUE"),
        (("orders", "--key", "k", "--since", "soon"), "soon"),
    ):
        outcome = cli("search", *options)
        assert outcome.code == 1
        assert len(outcome.err.splitlines()) == 1, outcome.err
        assert word in outcome.err


def test_all_topics_are_searched_at_once(cli: Cli):
    for topic in ("orders", "paid"):
        cli(
            "produce",
            topic,
            "--key",
            "order-4711",
            "--header",
            f"traceparent=00-{'a' * 32}-{'b' * 16}-01",
            stdin=b"x\n",
        )
        cli("produce", topic, "--key", "order-1", stdin=b"y\n")
    found = cli("search", "--all", "--key", "order-4711", "--json").json
    assert sorted(each["topic"] for each in found) == ["orders", "paid"]
    assert len(cli("search", "--all", "--trace", "a" * 32, "--topics", "or*", "--json").json) == 1
    assert "Give TOPIC or --all" in cli("search", "--key", "1").err
    assert "Give TOPIC or --all" in cli("search", "orders", "--all", "--key", "1").err
    assert "Give --all instead of TOPIC" in cli("search", "orders", "--trace", "a" * 32).err
    assert "--tag or --trace" in cli("search", "--all").err
    assert "headrace trace" in cli("search", "--all", "--id", "orders/0/0").err
