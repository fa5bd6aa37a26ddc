"""Three nodes with SASL and rules on: clients go on as their users when the leader is killed, what was revoked stays
revoked, and quotas hold."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer
from tests.clients.nsq.raw import NsqError, Raw
from tests.cluster.conftest import Peers
from tests.cluster.group_processes import GroupProcesses
from tests.cluster.secured_group import UserOfGroup, secured_group
from tests.waiting import wait_until

pytestmark = pytest.mark.etcd

TOPIC = "orders"
PATH = f"/v1/topics/{TOPIC}/messages"
PASSWORDS = {each: f"the secret of {each}" for each in ("shop", "billing", "web", "bus", "mallory", "slow")}


class Shop:
    """An idempotent producer of librdkafka that numbers its messages."""

    def __init__(self, user: UserOfGroup) -> None:
        self.acknowledged: list[str] = []
        self.failed: list[KafkaError] = []
        settings = {"acks": "all", "enable.idempotence": True, "linger.ms": 1, "message.timeout.ms": 90_000}
        self._producer = Producer({**user.librdkafka, **settings})
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stopping.wait(0.005):
            self._producer.produce(TOPIC, b"shop %d" % number, on_delivery=self._on_delivered)
            self._producer.poll(0)
            number += 1

    def _on_delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failed.append(error)
        else:
            self.acknowledged.append(text_of(message))

    def wait(self, more: int) -> None:
        least = len(self.acknowledged) + more
        wait_until(lambda: self.failed or len(self.acknowledged) >= least, lambda: f"{len(self.acknowledged)}")
        assert not self.failed

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()
        assert self._producer.flush(60) == 0


class Billing:
    """A member of a group that goes on where the group stands."""

    def __init__(self, user: UserOfGroup) -> None:
        self.read: list[str] = []
        self.failed: list[KafkaError] = []
        settings = {"group.id": "billing", "auto.offset.reset": "earliest", "session.timeout.ms": 10_000}
        self._consumer = Consumer({**user.librdkafka, **settings})
        self._consumer.subscribe([TOPIC])

    def wait_for(self, wanted: set[str]) -> None:
        def has_read() -> bool:
            for message in self._consumer.consume(1_000, 0.2):
                if (error := message.error()) is not None:
                    self.failed.append(error)
                else:
                    self.read.append(text_of(message))
            return wanted <= set(self.read)

        wait_until(has_read, lambda: f"{len(wanted - set(self.read))} are missing {self.failed}")

    def close(self) -> None:
        self._consumer.close()


def text_of(message: Message) -> str:
    value = message.value()
    assert isinstance(value, bytes)
    return value.decode()


def publish_by_nsq(group: GroupProcesses, leader: int, secret: str, text: str) -> str:
    """What came of it: OK, or the error."""
    raw = Raw(group.nodes[leader].addresses["nsq"])
    try:
        raw.send("AUTH", body=secret.encode())
        raw.response()
        raw.send("PUB", TOPIC, body=text.encode())
        return raw.response().decode()
    except NsqError as error:
        return str(error)
    finally:
        raw.close()


def produce_once(user: UserOfGroup) -> KafkaError | None:
    """The error of one message, if there is one."""
    found: list[KafkaError | None] = []
    producer = Producer({**user.librdkafka, "message.timeout.ms": 20_000})
    producer.produce(TOPIC, b"once", on_delivery=lambda error, _: found.append(error))
    assert producer.flush(40) == 0
    return found[0]


def make_users(ops: UserOfGroup, group: GroupProcesses) -> dict[str, UserOfGroup]:
    for name, password in PASSWORDS.items():
        ops.ask("POST", "/v1/users", name=name, password=password)
    for name in ("shop", "web", "bus", "mallory", "slow"):
        ops.ask("POST", "/v1/roles", user=name, role="producer", name="orders*")
    ops.ask("POST", "/v1/roles", user="billing", role="consumer", name="orders*", group="billing*")
    ops.ask("PUT", "/v1/quotas", entity={"user": "slow"}, quotas={"producer_byte_rate": 100})
    return {name: UserOfGroup(group, name, password) for name, password in PASSWORDS.items()}


def test_clients_go_on_as_their_users(etcd_peers: Peers, tmp_path: Path) -> None:
    with secured_group(etcd_peers, tmp_path) as (group, ops):
        leader = group.wait_leader(3)
        users = make_users(ops, group)
        token = ops.ask("POST", "/v1/tokens", user="bus")
        kept, ended = token["token"], ops.ask("POST", "/v1/tokens", user="bus")
        ops.ask("PUT", f"/v1/topics/{TOPIC}", partitions=2)

        def check_what_holds(leader: int, text: str) -> None:
            users["web"].ask("POST", PATH, value=f"web {text}")
            assert publish_by_nsq(group, leader, kept, f"bus {text}") == "OK"
            # Not of the user, revoked, and with a wrong password.
            assert "not authorized" in users["billing"].why_not("POST", PATH, value="x")
            assert "not authorized" in users["mallory"].why_not("POST", PATH, value="x")
            error = produce_once(users["mallory"])
            assert error is not None
            assert error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
            assert publish_by_nsq(group, leader, ended["token"], "x") != "OK"
            assert UserOfGroup(group, "web", "wrong").why_not("POST", PATH, value="x")
            # What is above a second's worth is let through once, and waited for by the next.
            assert not users["slow"].why_not("POST", PATH, value="y" * 2_000)
            assert "producer_byte_rate" in users["slow"].why_not("POST", PATH, value="y")

        assert produce_once(users["mallory"]) is None
        ops.ask("DELETE", "/v1/roles?user=mallory&role=producer&name=orders*")
        ops.ask("DELETE", f"/v1/tokens/{ended['id']}")
        shop, billing = Shop(users["shop"]), Billing(users["billing"])
        try:
            shop.wait(100)
            check_what_holds(leader, "before")
            group.nodes[leader].kill()
            leader = group.wait_leader(2, other_than=leader)
            shop.wait(100)
            check_what_holds(leader, "after")
        finally:
            shop.stop()
        assert not shop.failed
        others = {f"{who} {when}" for who in ("web", "bus") for when in ("before", "after")}
        billing.wait_for({*shop.acknowledged, *others})
        billing.close()
        assert not [each for each in billing.failed if "AUTH" in each.name()]
        assert not [secret for secret in (*PASSWORDS.values(), kept) if secret in group.words()]
