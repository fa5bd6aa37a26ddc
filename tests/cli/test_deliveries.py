"""What happens to messages, as a Kafka consumer reads it from `__deliveries`."""

from __future__ import annotations

import json

import pytest
from tests.cli.conftest import Cli
from tests.cli.nsq import NsqConsumer
from tests.waiting import wait_until

from headrace.embedded import Broker

pytestmark = pytest.mark.headrace(http="127.0.0.1:0", deliveries_flush_ms=20)


def test_the_life_of_each_message(cli: Cli, headrace_broker: Broker, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HEADRACE_HTTP", headrace_broker.http)
    cli("produce", "orders", stdin=b"0\n1\n2\n3\n")
    cli("queue", "create", "orders", "mail", "--deliveries", 1, "--max-attempts", 2, "--timeout-ms", "200ms")
    with NsqConsumer(headrace_broker.nsq, "orders", "mail") as consumer:
        ids = dict(reversed(consumer.next()) for _ in range(4))
        consumer.say(f"FIN {ids[b'0']}")
        consumer.say(f"TOUCH {ids[b'1']}")
        consumer.say(f"FIN {ids[b'1']}")
        consumer.say(f"REQ {ids[b'2']} 1")
        # The third comes again and times out for good; the fourth does so twice.
        wait_until(lambda: cli("queue", "show", "orders", "mail", "--json").json["dead"] == 2)

    def life() -> dict[int, list[tuple[str, int]]]:
        lives: dict[int, list[tuple[str, int]]] = {}
        for line in cli("consume", "__deliveries").lines:
            event = json.loads(line)
            assert (event["topic"], event["queue"], event["partition"]) == ("orders", "mail", 0)
            for first, last in event["runs"]:
                for offset in range(first, last + 1):
                    lives.setdefault(offset, []).append((event["event"], event.get("attempt", 0)))
        return lives

    expected = {
        0: [("delivered", 1), ("finished", 1)],
        1: [("delivered", 1), ("touched", 1), ("finished", 1)],
        2: [("delivered", 1), ("requeued", 1), ("delivered", 2), ("timed-out", 2), ("dead", 2)],
        3: [("delivered", 1), ("timed-out", 1), ("delivered", 2), ("timed-out", 2), ("dead", 2)],
    }
    wait_until(lambda: life() == expected, lambda: str(life()))
    shown = cli("topic", "describe", "__deliveries", "--json").json
    assert shown["config"]["durability"] == "async"
