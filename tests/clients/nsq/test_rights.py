"""NSQ's own clients and curl, as users of the broker."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest
from tests.clients.nsq.clients import Client, ClientFailed
from tests.clients.nsq.conftest import Doors, nsq_serving
from tests.waiting import SECONDS

PASSWORD = "a long secret: of ann"


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    """A broker where ann may do what she likes to topics, and bob nothing."""
    folder = tmp_path_factory.mktemp("rights")
    data, password = folder / "data", folder / "password"
    password.touch(0o600)
    password.write_text(PASSWORD + "\n")

    def command(*words: str) -> None:
        line = (sys.executable, "-m", "headrace.cli", *words, "--data", str(data))
        done = subprocess.run(line, capture_output=True, text=True, timeout=SECONDS, check=False)
        assert done.returncode == 0, done.stderr

    for user in ("ann", "bob"):
        command("user", "create", user, "--password-file", str(password))
    command("acl", "grant", "ann", "all", "topic", "*")
    command("acl", "grant", "ann", "all", "queue", "*")
    made = nsq_serving(data, "--authorization", "on", "--nsq-auth-required", "true")
    with made.serving:
        yield made.doors
        made.serving.stop()


def test_a_user_publishes_and_reads(closed: Doors, client: Client, topic: str) -> None:
    auth = f"ann:{PASSWORD}"
    client.publish(closed.nsq, topic, ["one", "two"], auth=auth)
    found = client.read(topic, "c", 2, nsqd=closed.nsq, auth=auth)
    assert [each.body for each in found] == ["one", "two"]


@pytest.mark.parametrize("auth", ["ann:wrong", f"bob:{PASSWORD}"])
def test_who_may_not_is_refused(closed: Doors, client: Client, topic: str, auth: str) -> None:
    with pytest.raises(ClientFailed):
        client.publish(closed.nsq, topic, ["no"], auth=auth)


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_curl_as_a_user(closed: Doors, topic: str) -> None:
    def status(*arguments: str) -> str:
        line = ("curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", "--max-time", "20", *arguments)
        return subprocess.run(line, capture_output=True, text=True, timeout=SECONDS, check=True).stdout

    for url, body in (
        (f"http://{closed.http}/pub?topic={topic}", "one"),
        (f"http://{closed.management}/topics/{topic}", "one"),
    ):
        assert status("-u", f"ann:{PASSWORD}", "-d", body, url) == "200"
        assert status("-u", f"bob:{PASSWORD}", "-d", body, url) == "403"
        assert status("-u", "ann:wrong", "-d", body, url) == "401"
        assert status("-d", body, url) == "401"
