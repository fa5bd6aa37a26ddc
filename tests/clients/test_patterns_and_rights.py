"""A pattern of the consumer protocol (KIP-848) means only topics that the member's user may describe."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from tests.clients.members import Member, poll_all
from tests.waiting import wait_until

import headrace
from headrace.cli.credentials import Login
from headrace.cli.offline import OfflineApi
from headrace.cli.over_http import Api

PASSWORDS = {"ops": "white whale", "ann": "blue fish", "bob": "red fish"}
TOPICS = ("orders.open", "orders.secret")


def rule(user: str, operation: str, resource: str, name: str) -> dict[str, str]:
    given = {"permission": "allow", "user": user, "host": "*"}
    return {**given, "operation": operation, "resource": resource, "name": name}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[headrace.Broker]:
    offline = OfflineApi(str(tmp_path / "data"), as_json=True)
    for name, password in PASSWORDS.items():
        offline.ask("POST", "/v1/users", {"name": name, "password": password})
    offline.ask("POST", "/v1/roles", {"user": "ops", "role": "admin"})
    rules = [rule(user, "read", "group", "g") for user in ("ann", "bob")]
    rules += [rule("ann", "read", "topic", "orders.open"), rule("bob", "read", "topic", "orders*")]
    offline.ask("POST", "/v1/acls", {"rules": rules})
    settings: dict[str, Any] = {"kafka_protocol": "SASL_PLAINTEXT", "authorization": "on", "nsq": "off"}
    settings |= {"group_consumer_heartbeat_interval_ms": 200}
    with headrace.Broker(data=str(tmp_path / "data"), http="127.0.0.1:0", **settings) as broker:
        yield broker


def as_user(name: str) -> dict[str, Any]:
    found = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanisms": "SCRAM-SHA-256"}
    return {**found, "sasl_username": name, "sasl_password": PASSWORDS[name]}


def test_a_pattern_means_what_its_user_may_describe(broker: headrace.Broker, members: list[Member]) -> None:
    admin = AdminClient(
        {"bootstrap.servers": broker.kafka, **{k.replace("_", "."): v for k, v in as_user("ops").items()}}
    )

    def make(*names: str) -> None:
        for future in admin.create_topics([NewTopic(each, 1) for each in names]).values():
            future.result(20)

    make(*TOPICS)
    api = Api(broker.http, True, Login("ops", PASSWORDS["ops"]).header)
    members.append(Member(broker.kafka, ["^orders.*"], group_protocol="consumer", **as_user("ann")))
    ann = members[0]

    def owned(member: Member) -> set[str]:
        return {topic for topic, _ in member.owned}

    wait_until(lambda: owned(ann) == {"orders.open"}, lambda: f"{owned(ann)}", turn=lambda: poll_all(members))
    # A topic of another's, that comes later.
    make("orders.late")
    # Another member, who may see all.
    members.append(Member(broker.kafka, ["^orders.*"], group_protocol="consumer", **as_user("bob")))
    bob = members[1]

    def others_are_bobs() -> bool:
        assert owned(ann) <= {"orders.open"}
        return owned(ann) | owned(bob) == {*TOPICS, "orders.late"}

    wait_until(others_are_bobs, lambda: f"{owned(ann)} {owned(bob)}", turn=lambda: poll_all(members))
    members.pop().consumer.close()
    # A right that comes, and goes.
    wanted = rule("ann", "read", "topic", "orders.secret")
    api.ask("POST", "/v1/acls", {"rules": [wanted]})
    wait_until(lambda: owned(ann) == set(TOPICS), lambda: f"{owned(ann)}", turn=lambda: poll_all(members))
    filters = {name: wanted[name] for name in ("user", "operation", "resource", "name")}
    api.ask("DELETE", "/v1/acls", query=filters)
    wait_until(lambda: owned(ann) == {"orders.open"}, lambda: f"{owned(ann)}", turn=lambda: poll_all(members))
