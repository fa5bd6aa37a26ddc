"""Names that lead out of a folder, at every door: they are refused or kept as names, and no file is elsewhere."""

from __future__ import annotations

import re
import socket
from contextlib import suppress
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import quote

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from tests.doors.rocketmq.client import Raw

import headrace
from headrace.doors.rocketmq.codes import Request

NAMES = [
    "plain",
    "..",
    ".",
    "../../evil",
    "/etc/evil",
    "a/../../evil",
    "..\\..\\evil",
    "evil/",
    "%2e%2e%2fevil",
    "evil\0x",
    "./evil",
    "evil\n",
]
SECRET = "only the owner reads this"
FOLDER = re.compile(r"[A-Za-z0-9._-]+-\d+")


def kafka(address: str, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    # librdkafka itself refuses some names, and takes others for the ends of their text.
    with suppress(KafkaException, ValueError):
        for made in admin.create_topics([NewTopic(name, 1, 1)], request_timeout=10).values():
            made.result(10)


def nsq(address: str, name: str) -> None:
    host, _, port = address.rpartition(":")
    for command in (f"PUB {name}\n".encode() + b"\0\0\0\1x", f"SUB t {name}\n".encode()):
        with socket.create_connection((host, int(port)), timeout=10) as client:
            client.sendall(b"  V2" + command)
            client.shutdown(socket.SHUT_WR)
            while client.recv(4096):
                pass


def http(address: str, name: str) -> None:
    for path in (name, quote(name, safe=""), quote(name)):
        for method, around in (
            ("POST", "/topics/{}"),
            ("POST", "/v1/topics/{}/messages"),
            ("PUT", "/v1/topics/{}"),
            ("PUT", "/v1/topics/t/queues/{}"),
            ("GET", "/{}"),
            ("GET", "/v1/{}/{}/../../../../../../../../etc/passwd"),
        ):
            client = HTTPConnection(address, timeout=10)
            # What no client of the standard library lets through is sent as it is.
            client._validate_path = lambda _: None  # type: ignore[attr-defined]
            client.request(method, around.replace("{}", path), b"{}", {"Content-Type": "application/json"})
            answer = client.getresponse().read()
            assert SECRET.encode() not in answer
            assert b"root:" not in answer
            client.close()


def rocketmq(address: str, name: str) -> None:
    topic = {"topic": name, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6, "topicFilterType": "SINGLE_TAG"}
    with suppress(ConnectionError), Raw(address) as raw:
        raw.ask(Request.UPDATE_AND_CREATE_TOPIC, topic)
    with suppress(ConnectionError), Raw(address) as raw:
        raw.sent(name, b"x")


@pytest.mark.parametrize("name", NAMES)
def test_a_name_leads_nowhere(tmp_path: Path, name: str) -> None:
    (tmp_path / "evil").write_text(SECRET)
    data = tmp_path / "one" / "data"
    with headrace.Broker(data=str(data), nsq_http="127.0.0.1:0", rocketmq="127.0.0.1:0") as broker:
        nsq(broker.nsq, name)
        http(broker.http, name)
        http(broker.nsq_http, name)
        rocketmq(broker.rocketmq, name)
        kafka(broker.kafka, name)
    outside = {path.relative_to(tmp_path) for path in tmp_path.rglob("*") if data not in path.parents}
    assert outside == {Path("evil"), Path("one"), Path("one/data")}
    assert (tmp_path / "evil").read_text() == SECRET
    folders = [path.parent for path in data.rglob("partition.metadata")]
    assert all(FOLDER.fullmatch(folder.name) for folder in folders)
    assert len({folder.parent for folder in folders}) <= 1
    assert (name == "plain") == any(folder.name == "plain-0" for folder in folders), "what is asked is done"
