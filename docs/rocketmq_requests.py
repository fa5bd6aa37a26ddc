"""The tables of RocketMQ's requests in rocketmq.md: every request code and RPC, and whether the door answers it.

What is answered is what the door's handlers are registered for; a test asks a broker and a name server for each code.
Names and numbers are those of RocketMQ 5.5's RequestCode, in rocketmq-requests.txt.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from unittest.mock import MagicMock

from headrace.broker.security.rights import Inside, Open
from headrace.doors.rocketmq.namesrv import handlers as namesrv
from headrace.doors.rocketmq.remoting import handlers as remoting
from headrace.doors.rocketmq.rights import BROKER, NAME_SERVER

HERE = Path(__file__).parent
STEPS = HERE.parent / "tests" / "java" / "rocketmq"
# Which requests the broker sends to its clients.
TO_CLIENTS = (
    *("CHECK_TRANSACTION_STATE", "NOTIFY_CONSUMER_IDS_CHANGED", "RESET_CONSUMER_CLIENT_OFFSET"),
    *("GET_CONSUMER_STATUS_FROM_CLIENT", "GET_CONSUMER_RUNNING_INFO", "CONSUME_MESSAGE_DIRECTLY"),
    "PUSH_REPLY_MESSAGE_TO_CLIENT",
)
# Why a code is refused: the first pattern that the name matches.
REASONS = {
    "LITE|PARENT_TOPIC": "there are no lite topics",
    "POP_ROLLBACK": "about RocketMQ's own files",
    "AUTH_": "users and rules are managed by `headrace user` and `headrace acl`",
    "CONTROLLER|BROKER_EPOCH|ROLE_CHANGED|CLEAN_BROKER_DATA": "there is no controller: replicas have their own "
    "consensus",
    "ADD_BROKER|REMOVE_BROKER|MEMBER_GROUP|MIN_BROKER|HA_|MASTER_FLUSH": "there are no RocketMQ slaves or broker "
    "containers",
    "ALL_CONSUMER_OFFSET|ALL_DELAY|TIMER_CHECK|ALL_MESSAGE_REQUEST_MODE": "slaves of RocketMQ ask for it, and there "
    "are none",
    "COLD_DATA|READ_MODE|COMMITLOG|CONSUMEQUEUE|CONSUME_QUEUE|ROCKSDB|UNUSED_TOPIC|DELETE_FILES|TIMER_ENGINE": "about "
    "RocketMQ's own files",
    "UNIT": "there are no unit topics",
    "STATIC_TOPIC": "there are no static topics",
    "NAMESRV_CONFIG": "the name server has the broker's settings",
    "FILTER": "there are no filter servers, nor in RocketMQ 5",
    "": "left out",
}
# By which helpers of the tests' client a request is sent.
_HELPERS = {
    "SEND_MESSAGE_V2": r"\.sent\(",
    "SEND_BATCH_MESSAGE": r"\.send_batch\(",
    "PULL_MESSAGE": r"\.pull\(",
    "HEART_BEAT": r"\.heartbeat\(",
}


def codes() -> dict[int, str]:
    """RocketMQ's request codes."""
    lines = (HERE / "rocketmq-requests.txt").read_text().splitlines()
    return {int(number): name for number, name in map(str.split, lines)}


def answered() -> tuple[Collection[int], Collection[int]]:
    """The codes that the broker answers, and those that the name server answers."""

    async def register() -> tuple[Collection[int], Collection[int]]:
        return remoting.of(MagicMock()).keys(), namesrv.of(MagicMock()).keys()

    return asyncio.run(register())


def requests_table() -> str:
    """Every request code."""
    broker, name_server = answered()
    rows, refused = [], dict[str, list[str]]()
    for number, name in codes().items():
        doors = ["broker"] * (number in broker) + ["name server"] * (number in name_server)
        doors += ["to clients"] * (name in TO_CLIENTS)
        if doors:
            right = _right(number)
            rows.append(f"| {number} | `{name}` | {', '.join(doors)} | {right} | {' '.join(_compared(name)) or '-'} |")
        else:
            reason = next(text for pattern, text in REASONS.items() if re.search(pattern, name))
            refused.setdefault(reason, []).append(f"`{name}` ({number})")
    head = "| code | request | answered by | takes | compared with RocketMQ 5.5 by |\n| --- | --- | --- | --- | --- |\n"
    head_refused = "\nRefused with `REQUEST_CODE_NOT_SUPPORTED`:\n\n| | |\n| --- | --- |\n"
    rest = "".join(f"| {reason} | {', '.join(names)} |\n" for reason, names in refused.items())
    return head + "\n".join(rows) + "\n" + head_refused + rest


def rpcs() -> tuple[Collection[str], Collection[str]]:
    """The RPCs of the published protos, and those that are answered."""
    from headrace.doors.rocketmq.grpc import handlers
    from headrace.doors.rocketmq.grpc.protocol import service

    async def register() -> Collection[str]:
        context = MagicMock()
        context.settings.rocketmq_delay_levels = "1s"
        made = handlers.Handlers(context, MagicMock(), MagicMock(), MagicMock(), MagicMock())
        return {*made.unary, *made.streaming, "Telemetry"}

    methods = service.DESCRIPTOR.services_by_name["MessagingService"].methods
    return [each.name for each in methods], asyncio.run(register())


def rpcs_table() -> str:
    """Every RPC."""
    every, served = rpcs()
    rows = [f"| `{name}` | {'answered' if name in served else 'refused (`UNIMPLEMENTED`)'} |\n" for name in every]
    return "| RPC | |\n| --- | --- |\n" + "".join(rows)


def _right(number: int) -> str:
    """What a request takes."""
    declaration = BROKER.get(number) or NAME_SERVER.get(number)
    if isinstance(declaration, Open):
        return f"nothing: {declaration.why}"
    if isinstance(declaration, Inside):
        return declaration.where
    return ", ".join(f"{each.operation.name} {each.resource.name.lower()}" for each in declaration or ()) or "-"


def _compared(name: str) -> Iterator[str]:
    for file, test in (
        ("steps", "test_beside_rocketmq"),
        ("admin_steps", "test_admin_beside_rocketmq"),
        ("pop_steps", "test_pop_beside_rocketmq"),
        ("query_steps", "test_query_beside_rocketmq"),
    ):
        if re.search(rf"\bRequest\.{name}\b|{_HELPERS.get(name, '(?!)')}", (STEPS / f"{file}.py").read_text()):
            yield f"`{test}`"
