"""Produce and Fetch as old clients say them and as new ones do: by topic name in fields of fixed places, by name with
flexible fields, by topic id. A client draws its version; what it hears comes back in one form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any
from uuid import UUID

from headrace.client import messages, wire

Parts = Sequence[wire.Buffer]

PRODUCE_VERSIONS = (wire.PRODUCE_VERSION, wire.PRODUCE_VERSION, 9, 13)
FETCH_VERSIONS = (wire.FETCH_VERSION, wire.FETCH_VERSION, 12, 16)
TOPIC_IDS = 13
NO_TAGS = b"\0"
SESSION_AT = Struct(">6xi")


class Codec:
    """The requests of one version of each API."""

    def __init__(self, produce: int, fetch: int, ids: dict[str, UUID]) -> None:
        self.produce_version = produce
        self.fetch_version = fetch
        self._ids = ids
        self._names = {id: name for name, id in ids.items()}

    def produce(
        self,
        batches: list[tuple[str, int, bytes]],
        acks: int,
        timeout_ms: int,
        transactional_id: str | None = None,
    ) -> tuple[Parts, Callable[[memoryview], list[wire.Produced]]]:
        """A request's body, and how to read its answer."""
        version = self.produce_version
        if version == wire.PRODUCE_VERSION:
            return wire.encode_produce(batches, acks, timeout_ms, transactional_id), wire.decode_produce
        topics: dict[str, list[dict[str, Any]]] = {}
        for topic, index, batch in batches:
            topics.setdefault(topic, []).append({"index": index, "records": batch})
        entity = messages.request(
            "produce",
            version,
            transactional_id=transactional_id,
            acks=acks,
            timeout=timeout_ms,
            topic_data=[{**self._topic(version, name), "partition_data": each} for name, each in topics.items()],
        )

        def decode(payload: memoryview) -> list[wire.Produced]:
            return [
                wire.Produced(self._name(topic), each.index, int(each.error_code), each.base_offset, -1, -1, None)
                for topic in messages.decode_response(entity, bytes(payload)).responses
                for each in topic.partition_responses
            ]

        return (NO_TAGS, messages.encode(entity)), decode

    def fetch(
        self,
        wanted: list[wire.Wanted],
        max_wait: int,
        min_bytes: int,
        session: int,
        epoch: int,
        committed: bool = False,
    ) -> tuple[Parts, Callable[[memoryview], tuple[int, list[wire.Fetched], int]]]:
        """A request's body, and how to read its answer: the error, the partitions, the session."""
        version = self.fetch_version
        if version == wire.FETCH_VERSION:
            body = wire.encode_fetch(
                wanted, max_wait_ms=max_wait, min_bytes=min_bytes, max_bytes=1 << 20, committed=committed
            )
            topics = len({each.topic for each in wanted})
            body[0] = wire.FETCH_HEAD.pack(
                wire.CONSUMER, max_wait, min_bytes, 1 << 20, committed, session, epoch, topics
            )
            return body, lambda payload: (*wire.decode_fetch(payload), SESSION_AT.unpack_from(payload)[0])
        listed: dict[str, list[dict[str, Any]]] = {}
        for each in wanted:
            listed.setdefault(each.topic, []).append(
                {"partition": each.partition, "fetch_offset": each.offset, "partition_max_bytes": each.max_bytes}
            )
        entity = messages.request(
            "fetch",
            version,
            max_wait=max_wait,
            min_bytes=min_bytes,
            max_bytes=1 << 20,
            isolation_level=int(committed),
            session_id=session,
            session_epoch=epoch,
            topics=[{**self._topic(version, name, "topic"), "partitions": each} for name, each in listed.items()],
        )

        def decode(payload: memoryview) -> tuple[int, list[wire.Fetched], int]:
            reply = messages.decode_response(entity, bytes(payload))
            found = [
                wire.Fetched(
                    self._name(topic),
                    each.partition_index,
                    int(each.error_code),
                    each.high_watermark,
                    each.last_stable_offset,
                    each.log_start_offset,
                    [(one.producer_id, one.first_offset) for one in each.aborted_transactions or ()],
                    memoryview(each.records or b""),
                )
                for topic in reply.responses
                for each in topic.partitions
            ]
            return int(reply.error_code), found, reply.session_id

        return (NO_TAGS, messages.encode(entity)), decode

    def _topic(self, version: int, name: str, field: str = "name") -> dict[str, Any]:
        return {"topic_id": self._ids[name]} if version >= TOPIC_IDS else {field: name}

    def _name(self, topic: Any) -> str:
        if hasattr(topic, "topic_id"):
            return self._names[topic.topic_id]
        return str(topic.name if hasattr(topic, "name") else topic.topic)
