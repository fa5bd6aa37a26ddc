"""What RocketMQ's clients record of messages, in the topic `RMQ_SYS_TRACE_TOPIC`: when they were sent and consumed.

Clients write there where that is switched on (`enableMsgTrace`). A record has any number of traces, each a line of
fields; a message is named by its unique id, the property UNIQ_KEY. Any client may write to the topic: what is no trace
is passed over.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

TOPIC = "RMQ_SYS_TRACE_TOPIC"
UNIQUE_KEY = "UNIQ_KEY"
# As RocketMQ's clients make them, by an address of IPv4 or IPv6 or, over gRPC, by one of the network card.
UNIQUE_ID = re.compile(r"[0-9A-F]{32}|[0-9A-F]{34}|[0-9A-F]{56}")
SENT, CONSUMING, CONSUMED, COMMITTED, ROLLED_BACK = "sent", "consuming", "consumed", "committed", "rolled back"
NOT_CONSUMED = "not consumed"
_FIELD, _LINE = "\x01", "\x02"
_STATES = {"COMMIT_MESSAGE": COMMITTED, "ROLLBACK_MESSAGE": ROLLED_BACK}


@dataclass(frozen=True, slots=True)
class ClientTrace:
    """Something that a client did with a message."""

    t: int
    unique_id: str
    what: str
    group: str
    attempt: int = 0
    error: str = ""


def parse(value: bytes) -> Iterator[ClientTrace]:
    """The traces of a record."""
    for line in value.decode(errors="replace").split(_LINE):
        fields = line.split(_FIELD)
        try:
            found = _READERS[fields[0]](fields)
        except (KeyError, IndexError, ValueError):
            continue
        if found is not None:
            yield found


def _read_sent(fields: list[str]) -> ClientTrace:
    error = "" if fields[13] == "true" else "the producer had no success"
    return ClientTrace(_number(fields[1]), fields[5], SENT, fields[3], error=error)


def _read_consuming(fields: list[str]) -> ClientTrace:
    return ClientTrace(_number(fields[1]), fields[5], CONSUMING, fields[3], _number(fields[6]) + 1)


def _read_consumed(fields: list[str]) -> ClientTrace:
    what = CONSUMED if fields[4] == "true" else NOT_CONSUMED
    return ClientTrace(_number(fields[7]), fields[2], what, fields[8])


def _read_ended(fields: list[str]) -> ClientTrace | None:
    what = _STATES.get(fields[11])
    return None if what is None else ClientTrace(_number(fields[1]), fields[5], what, fields[3])


def _number(text: str) -> int:
    if not text.isdecimal() or len(text) > 15:
        raise ValueError(text)
    return int(text)


_READERS = {
    "Pub": _read_sent,
    "SubBefore": _read_consuming,
    "SubAfter": _read_consumed,
    "EndTransaction": _read_ended,
}
