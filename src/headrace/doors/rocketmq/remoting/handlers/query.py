"""Messages by a key of theirs, in a range of time (12): RocketMQ's Index Service, over the broker's search.

As there, one name space holds unique keys and the words of KEYS, and another the tags (index type `T`); the newest
messages are answered, in the order of their times. What clients compare themselves, they may compare: nothing else than
what matches is answered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.search.query import EVER, NEVER, Query, Term, key, tag, unique_key
from headrace.broker.search.search import Match, has_index
from headrace.doors.rocketmq import messages
from headrace.doors.rocketmq.codes import Code
from headrace.doors.rocketmq.connection import Call
from headrace.doors.rocketmq.remoting.reader import QueueReader
from headrace.log.interface import Topic

if TYPE_CHECKING:
    from headrace.doors.rocketmq.remoting.listener import Remoting

# RocketMQ's own: of an answer to any query, and to one for a unique key.
COUNT_MAX = 64
UNIQUE_COUNT = 32
# RocketMQ's clients read frames of 16 MiB.
ANSWER_BYTES_MAX = 12 << 20
UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"
NOT_FOUND = "can not find message, maybe time range not correct"


class QueryHandler:
    """Answers queries for messages."""

    def __init__(self, remoting: Remoting) -> None:
        self._remoting = remoting
        self._broker = remoting.broker
        self._reader = QueueReader(remoting)

    async def handle(self, call: Call) -> None:
        """QUERY_MESSAGE."""
        name, wanted = call.text("topic"), call.text("key").encode()
        count = call.number("maxNum")
        since, until = call.number("beginTimestamp"), call.number("endTimestamp")
        is_unique = call.flag(UNIQUE_KEY_QUERY)
        count = UNIQUE_COUNT if is_unique else min(count, COUNT_MAX)
        kind = "U" if is_unique else call.text("indexType", "") or "K"
        topic = self._remoting.topics.find(name)
        if topic is None or not wanted or count < 1 or since > until:
            self._answer_nothing(call, NOT_FOUND)
            return
        terms = {"U": [unique_key(wanted)], "T": [tag(wanted)]}.get(kind, [key(wanted), unique_key(wanted)])
        await self._broker.rocketmq.load()
        found, hint = await self._find(topic, terms, _bounded(since), _bounded(until), count)
        if not found:
            self._answer_nothing(call, hint or NOT_FOUND)
            return
        body = await self._body(call, topic, found)
        clock = self._broker.runtime.clock
        partition = topic.partitions[found[-1].partition]
        physical = self._broker.rocketmq.offsets.encode(topic.id, partition.index, found[-1].record[0])
        fields = {"indexLastUpdateTimestamp": str(clock.now_ms()), "indexLastUpdatePhyoffset": str(physical or 0)}
        call.answer(fields=fields, body=body)

    async def _find(
        self, topic: Topic, terms: list[Term], since: int, until: int, count: int
    ) -> tuple[list[Match], str | None]:
        """The newest messages that have one of the terms, the oldest first; and why there may be others."""
        found: dict[tuple[int, int], Match] = {}
        hint = None
        for term in terms:
            query = Query((term,), since, until)
            page = await self._broker.search.newest(topic, query, count, ANSWER_BYTES_MAX)
            found |= {(match.partition, match.record[0]): match for match in page.found}
            if page.next is not None and not has_index(topic, query):
                hint = (
                    f"not found in the time that a query may take (search_ms): the topic {topic.name} has no index of "
                    f"it. Set its setting index to {term[0]}."
                )
        newest = sorted(found.values(), key=lambda match: (match.record[1], match.record[0]))
        return newest[-count:], hint

    async def _body(self, call: Call, topic: Topic, found: list[Match]) -> bytes:
        """The messages, as far as there is room; the newest stay."""
        host = self._remoting.store_host(call.connection)
        parts: list[bytes] = []
        size = 0
        for match in reversed(found):
            message = await self._reader.message(topic.partitions[match.partition], match.record, host)
            parts.append(messages.encode(message))
            size += len(parts[-1])
            if size > ANSWER_BYTES_MAX and len(parts) > 1:
                parts.pop()
                break
        return b"".join(reversed(parts))

    def _answer_nothing(self, call: Call, remark: str) -> None:
        fields = {"indexLastUpdateTimestamp": "0", "indexLastUpdatePhyoffset": "0"}
        call.answer(Code.QUERY_NOT_FOUND, fields, remark=remark)


def _bounded(time_ms: int) -> int:
    return max(EVER, min(time_ms, NEVER))
