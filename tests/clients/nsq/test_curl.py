"""The HTTP sides as a person with curl uses them."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.clients.nsq.clients import Client
from tests.clients.nsq.conftest import Doors
from tests.clients.nsq.test_messages import now_ms, numbered

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")


def curl(*arguments: str | Path, fails: bool = False) -> str:
    done = subprocess.run(
        ["curl", "-sS", "--max-time", "20", "-w", "\n%{http_code}", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    body, _, code = done.stdout.rpartition("\n")
    assert (code != "200") is fails, done.stdout
    return body


def ask(doors: Doors, path: str, *arguments: str, fails: bool = False) -> str:
    return curl(*arguments, f"http://{doors.http}{path}", fails=fails)


def test_the_round_of_a_message(doors: Doors, pynsq: Client, topic: str) -> None:
    assert ask(doors, "/ping") == "OK"
    assert ask(doors, f"/pub?topic={topic}", "-d", "hello world") == "OK"
    (found,) = pynsq.read(topic, "c", 1, nsqd=doors.nsq)
    assert found.body == "hello world"


def test_many_lines_are_many_messages(doors: Doors, pynsq: Client, topic: str) -> None:
    ask(doors, f"/mpub?topic={topic}", "--data-binary", "one\ntwo\n\nthree")
    assert [each.body for each in pynsq.read(topic, "c", 3, nsqd=doors.nsq)] == ["one", "two", "three"]


def test_many_messages_in_binary(doors: Doors, pynsq: Client, topic: str, tmp_path: Path) -> None:
    bodies = ["line\nbreak", "plain"]
    packed = b"".join(struct.pack(">i", len(body)) + body.encode() for body in bodies)
    (tmp_path / "body").write_bytes(struct.pack(">i", len(bodies)) + packed)
    ask(doors, f"/mpub?topic={topic}&binary=true", "--data-binary", f"@{tmp_path / 'body'}")
    assert [each.body for each in pynsq.read(topic, "c", 2, nsqd=doors.nsq)] == bodies


def test_a_deferred_message(doors: Doors, pynsq: Client, topic: str) -> None:
    with pynsq.consume(topic, "c", nsqd=doors.nsq, count=1) as consuming:
        doors.wait_for_clients(topic, "c")
        begin = now_ms()
        ask(doors, f"/pub?topic={topic}&defer=1000", "-d", "later")
        (found,) = consuming.rest()
    assert begin + 1000 <= found.at <= begin + 20_000


def test_a_message_that_is_too_large(doors: Doors, topic: str, tmp_path: Path) -> None:
    (tmp_path / "body").write_bytes(bytes(1_048_577))
    said = ask(doors, f"/pub?topic={topic}", "--data-binary", f"@{tmp_path / 'body'}", fails=True)
    assert json.loads(said)["message"] == "MSG_TOO_BIG"


def test_topics_and_channels_come_and_go(doors: Doors, topic: str) -> None:
    def listed() -> list[str]:
        return [each["topic_name"] for each in doors.get("/stats?format=json")["topics"]]

    ask(doors, f"/topic/create?topic={topic}", "-X", "POST")
    ask(doors, f"/channel/create?topic={topic}&channel=c", "-X", "POST")
    assert topic in listed()
    assert doors.channel(topic, "c")["depth"] == 0
    for body in numbered(3):
        ask(doors, f"/pub?topic={topic}", "-d", body)
    assert doors.channel(topic, "c")["depth"] == 3
    ask(doors, f"/channel/empty?topic={topic}&channel=c", "-X", "POST")
    assert doors.channel(topic, "c")["depth"] == 0
    ask(doors, f"/channel/delete?topic={topic}&channel=c", "-X", "POST")
    assert doors.channel(topic, "c") == {}
    ask(doors, f"/topic/delete?topic={topic}", "-X", "POST")
    assert topic not in listed()
    assert "TOPIC_NOT_FOUND" in ask(doors, f"/topic/delete?topic={topic}", "-X", "POST", fails=True)


def test_the_lookup(doors: Doors, topic: str) -> None:
    def look(path: str) -> Any:
        return json.loads(curl(f"http://{doors.lookup_http}{path}"))

    ask(doors, f"/topic/create?topic={topic}", "-X", "POST")
    ask(doors, f"/channel/create?topic={topic}&channel=c", "-X", "POST")
    found = look(f"/lookup?topic={topic}")
    assert found["channels"] == ["c"]
    (producer,) = found["producers"]
    assert f"{producer['broadcast_address']}:{producer['tcp_port']}" == doors.nsq
    assert f"{producer['broadcast_address']}:{producer['http_port']}" == doors.http
    assert topic in look("/topics")["topics"]
    assert look(f"/channels?topic={topic}")["channels"] == ["c"]
    assert any(topic in node["topics"] for node in look("/nodes")["producers"])
    ask(doors, f"/topic/delete?topic={topic}", "-X", "POST")
    assert "TOPIC_NOT_FOUND" in curl(f"http://{doors.lookup_http}/lookup?topic={topic}", fails=True)
