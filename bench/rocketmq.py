"""`python -m bench.rocketmq`: RocketMQ's protocols, remoting and gRPC, on Headrace and on RocketMQ 5.5 with its proxy,
turn by turn.

Durability is equal: an answer means that the message is on the disk (`durability=sync`, `SYNC_FLUSH`), or with
`--async` that it is in the system's memory (`async`, `ASYNC_FLUSH`). Every row is measured once a round, for as many
rounds as there is time, so that a run ends within ten minutes; the best is kept. The server's CPU time per message
counts on a busy machine, the rates less.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from tests.doors.rocketmq.client import Raw

from bench import report
from bench.measure import measure
from bench.peers import Missing, free_port
from bench.peers.headrace import Headrace
from bench.peers.rocketmq import RocketMq
from headrace.doors.rocketmq.codes import Request

LOAD = "bench.rocketmq_load"
GRPC_LOAD = "bench.rocketmq_grpc_load"
GROUP = "bench"
SIZE = 1_024
RATE = 1_000
MARK = "measured: rocketmq"
# After so long no further round begins that would not end in time.
BUDGET_SECONDS = 480.0
# Of the first round what comes after so long is left out: so much topics take to be made on a slow disk.
FIRST_SECONDS = 420.0


class HeadraceRocketMq(Headrace):
    """With RocketMQ's door open, and measured through it."""

    def __init__(self, durability: str) -> None:
        super().__init__()
        self._durability = durability

    def _doors(self) -> list[str]:
        self.port, self.grpc_port = free_port(), free_port()
        doors = ["--rocketmq", f"127.0.0.1:{self.port}", "--rocketmq-grpc", f"127.0.0.1:{self.grpc_port}"]
        return [*doors, "--durability", self._durability]


Server = HeadraceRocketMq | RocketMq


def make_topics(server: Server, count: int) -> list[str]:
    """Topics of one queue."""
    prefix = f"b-{uuid4().hex[:6]}"
    names = [f"{prefix}-{number}" for number in range(count)]
    with Raw(f"127.0.0.1:{server.port}") as raw:
        for name in names:
            fields = {"topic": name, "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
            fields |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false"}
            answer = raw.ask(Request.UPDATE_AND_CREATE_TOPIC, fields)
            if answer.code:
                raise RuntimeError(f"{server.name} made no topic: {answer}")
    return names


def make_group(server: Server) -> None:
    """The group that receives over gRPC: RocketMQ's proxy makes none."""
    with Raw(f"127.0.0.1:{server.port}") as raw:
        body = json.dumps({"groupName": GROUP}).encode()
        answer = raw.ask(Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)
    if answer.code:
        raise RuntimeError(f"{server.name} made no group: {answer}")


def rows(messages: int, topics: Sequence[int]) -> Iterator[tuple[str, dict[str, Any], int]]:
    """Name, load and number of topics of each row."""
    for count in (1, 8, 64):
        load = {"kind": "send", "connections": count, "messages": messages // (4 if count == 1 else 1)}
        yield f"send, {count} threads", load, 1
    yield "send batches of 32", {"kind": "send", "connections": 8, "batch": 32, "messages": messages * 4}, 1
    yield "pull 32 at once", {"kind": "pull", "messages": messages}, 1
    for count in (1, 8):
        load = {"kind": "grpc send", "connections": count, "messages": messages // 8}
        yield f"gRPC: send, {count} threads", load, 1
    yield "gRPC: receive and acknowledge 32 at once", {"kind": "grpc receive", "messages": messages // 2}, 1
    yield f"end to end at {RATE}/s", {"kind": "latency", "messages": messages // 2, "rate": RATE}, 1
    for count in topics:
        load = {"kind": "send", "connections": 64, "messages": messages, "warm": count}
        yield f"send, 64 threads, {count} topics", load, count


def measure_row(server: Server, load: dict[str, Any], names: list[str]) -> dict[str, float]:
    spec = {**load, "topics": names, "size": SIZE, "grpc_port": server.grpc_port}
    if load["kind"] in ("pull", "grpc receive"):
        measure(server, {**spec, "kind": "send", "connections": 64}, load=LOAD)
    found = measure(server, spec, load=GRPC_LOAD if load["kind"].startswith("grpc") else LOAD)
    result = found.results[0]
    count = result["messages"]
    kept = {"us": 1e6 * found.server_cpu / count, "rate": count / found.seconds}
    return kept | {name: result[name] for name in ("p50_ms", "p99_ms") if name in result}


def best(rounds: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: (max if name == "rate" else min)(each[name] for each in rounds) for name in rounds[0]}


class Costs:
    """What was measured, by row and server."""

    def __init__(self, about: str) -> None:
        self._about = about
        self._found: dict[str, dict[str, list[dict[str, float]]]] = {}

    def add(self, row: str, server: str, figures: dict[str, float]) -> None:
        self._found.setdefault(row, {}).setdefault(server, []).append(figures)

    def notes(self) -> list[str]:
        """How it was measured."""
        rounds = max((len(each) for by_server in self._found.values() for each in by_server.values()), default=0)
        return [f"{datetime.now(UTC):%Y-%m-%d}, {report.machine()}. {self._about}; the best of {rounds} rounds."]

    def markdown(self) -> str:
        lines = ["| | | server CPU per message | messages per second | end to end, p50 and p99 |"]
        lines.append("| --- | --- | --- | --- | --- |")
        for row, by_server in self._found.items():
            kept = {server: best(rounds) for server, rounds in by_server.items()}
            lines += [_line(row, server, figures) for server, figures in kept.items()]
            if len(kept) > 1:
                here, there = kept.values()
                ratios = {key: there[key] / here[key] for key in here}
                lines.append(
                    f"| | RocketMQ / Headrace | {ratios['us']:.2f}x | {ratios['rate']:.2f}x | {_ratio(ratios)} |"
                )
        return "\n".join(lines) + "\n"


def _line(row: str, server: str, kept: dict[str, float]) -> str:
    latency = f"{kept['p50_ms']:.2f} ms, {kept['p99_ms']:.2f} ms" if "p50_ms" in kept else ""
    return f"| {row} | {server} | {kept['us']:.1f} us | {kept['rate']:,.0f} | {latency} |"


def _ratio(ratios: dict[str, float]) -> str:
    return f"{ratios['p50_ms']:.2f}x, {ratios['p99_ms']:.2f}x" if "p50_ms" in ratios else ""


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.rocketmq", description=__doc__, allow_abbrev=False)
    parser.add_argument("--quick", action="store_true", help="less of everything: a look, not figures to keep")
    parser.add_argument("--messages", type=int, help="of a row, some take a part or more of it (20,000; 2,000)")
    parser.add_argument("--rounds", type=int, help="at most (5; 1 with --quick)")
    parser.add_argument(
        "--topics", type=int, nargs="*", help="rows with so many topics (10 10000; 10 100 with --quick)"
    )
    parser.add_argument("--alone", action="store_true", help="measure Headrace without RocketMQ")
    parser.add_argument("--async", action="store_true", dest="is_async", help="without waiting for the disk")
    parser.add_argument("--write", action="store_true", help="put the table into bench/README.md")
    given = parser.parse_args(arguments)
    given.messages = given.messages or (2_000 if given.quick else 20_000)
    given.rounds = given.rounds or (1 if given.quick else 5)
    if given.topics is None:
        given.topics = [10, 100] if given.quick else [10, 10_000]
    return given


def measure_all(servers: Sequence[Server], given: argparse.Namespace, costs: Costs) -> None:
    """Round by round, every row on all servers, for as long as there is time."""
    names: dict[tuple[str, str], list[str]] = {}
    began = before = time.monotonic()
    for number in range(given.rounds):
        for row, load, count in rows(given.messages, given.topics):
            if count > 1 and not number and time.monotonic() > began + FIRST_SECONDS:
                print(f"{row}: left out, there is no time for it", file=sys.stderr)
                continue
            for server in servers:
                key = row, server.name
                if count > 1 and number and key not in names:
                    continue
                topics = names[key] if key in names else make_topics(server, count)
                if count > 1:
                    names[key] = topics
                figures = measure_row(server, load, topics)
                costs.add(row, server.name, figures)
                print(_line(row, server.name, figures), flush=True)
        now = time.monotonic()
        if now + (now - before) > began + BUDGET_SECONDS:
            break
        before = now


def main(arguments: Sequence[str]) -> None:
    given = parse(arguments)
    servers: list[Server] = [HeadraceRocketMq("async" if given.is_async else "sync")]
    if not given.alone:
        try:
            servers.append(RocketMq(flush="ASYNC_FLUSH" if given.is_async else "SYNC_FLUSH", has_proxy=True))
        except Missing as reason:
            print(f"RocketMQ is not measured: {reason}", file=sys.stderr)
    durability = "in the system's memory" if given.is_async else "on the disk"
    costs = Costs(f"{SIZE} bytes a message, acknowledged when {durability}; {given.messages:,} messages a row")
    try:
        for server in servers:
            server.start()
            make_group(server)
        measure_all(servers, given, costs)
    finally:
        for server in servers:
            server.stop()
    print("\n".join(["", *costs.notes(), "", costs.markdown()]))
    if given.write:
        report.write(costs, MARK)


if __name__ == "__main__":
    main(sys.argv[1:])
