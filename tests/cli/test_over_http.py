"""Commands over HTTP at a group of nodes: several addresses, redirects, and a group without a leader."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from headrace.cli.over_http import Api
from headrace.errors import HeadraceError
from headrace.sdk.http_door import ask

NOT_LEADING = json.dumps({"error": "NotLeading", "message": "no node leads"}).encode()


class Node(ThreadingHTTPServer):
    """An HTTP door that answers with a list of statuses, the last one for ever."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.statuses = [200]
        self.location = ""
        self.asked: list[tuple[str, str, bytes]] = []
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Node

    def answer(self) -> None:
        node = self.server
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        node.asked.append((self.command, self.path, body))
        status = node.statuses.pop(0) if len(node.statuses) > 1 else node.statuses[0]
        content = b'{"fine": true}' if status == 200 else NOT_LEADING
        self.send_response(status)
        if status == 307:
            self.send_header("Location", f"http://{node.location}{self.path}")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_PUT = answer  # noqa: N815 - the names are the base class's

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def nodes() -> Iterator[list[Node]]:
    made = [Node(), Node()]
    yield made
    for node in made:
        node.shutdown()
        node.server_close()


def test_a_node_that_follows_sends_on_to_the_leader(nodes: list[Node]) -> None:
    follower, leader = nodes
    follower.statuses, follower.location = [307], leader.address
    api = Api(follower.address, as_json=True)
    assert api.ask("PUT", "/v1/topics/t/queues/q", {"a": 1}, {"b": "c d"}) == {"fine": True}
    assert api.get("/v1/queues") == {"fine": True}
    sent = [("PUT", "/v1/topics/t/queues/q?b=c+d", b'{"a": 1}')]
    assert follower.asked == sent
    assert leader.asked == [*sent, ("GET", "/v1/queues", b"")], "the leader is remembered"
    status, answer = ask("PUT", f"http://{follower.address}/v1/x", 10.0, {"a": 1})
    assert (status, answer, leader.asked[-1][2]) == (200, {"fine": True}, b'{"a": 1}')


def test_a_node_that_is_gone_is_passed_over(nodes: list[Node]) -> None:
    assert Api(f"127.0.0.1:1, {nodes[0].address}", as_json=True).get("/v1/queues") == {"fine": True}
    with pytest.raises(HeadraceError, match="cannot reach"):
        Api("127.0.0.1:1,127.0.0.1:2", as_json=True).get("/v1/queues")


def test_reading_waits_for_a_leader_and_changing_does_not(nodes: list[Node]) -> None:
    nodes[0].statuses = [503, 503, 200]
    assert Api(nodes[0].address, as_json=True).get("/v1/queues") == {"fine": True}
    nodes[0].statuses = [503]
    with pytest.raises(HeadraceError, match="no node leads"):
        Api(nodes[0].address, as_json=True).ask("POST", "/v1/redrive", {})
    assert len(nodes[0].asked) == 4


def test_nodes_that_send_to_each_other(nodes: list[Node], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.cli.over_http.LEADER_SECONDS", 0.1)
    for node, other in (nodes, reversed(nodes)):
        node.statuses, node.location = [307], other.address
    with pytest.raises(HeadraceError, match="no node leads"):
        Api(nodes[0].address, as_json=True).get("/v1/queues")
    assert ask("GET", f"http://{nodes[0].address}/v1/x", 10.0)[0] == 307
