"""The fake cluster with a transaction coordinator, in both generations of the protocol.

It keeps what Kafka promises: one owner of a transactional id, epochs that fence, partitions that must be enrolled, ends
that can be asked for twice, and (in the second generation) a new epoch with each end. What a committed reader would see
is kept apart, so that a test can compare it with what the client was told.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, ClassVar

from tests.client.fake import APIS, NOT_LEADER, OUT_OF_ORDER, FakeCluster, Log

from headrace.format import records
from headrace.format.batch import HEADER, TRANSACTIONAL

NOT_COORDINATOR, STALE_EPOCH, INVALID_STATE, CONCURRENT, FENCED = 16, 47, 48, 51, 90
LAST_EPOCH = 32767

Partition = tuple[str, int]


class TransactionalLog(Log):
    """A partition that knows epochs and open transactions."""

    def __init__(self) -> None:
        super().__init__()
        self.epochs: dict[int, int] = {}
        self.open: dict[int, list[bytes]] = {}
        self.committed: list[bytes] = []
        """Values of committed records, by transaction in the order of their ends."""

    def append(self, batch: bytearray) -> tuple[int, int]:
        header = HEADER.unpack_from(batch)
        producer, epoch, sequence = header[9:12]
        if epoch < self.epochs.get(producer, -1):
            return STALE_EPOCH, -1
        if epoch > self.epochs.get(producer, -1):
            if sequence and producer in self.epochs:
                return OUT_OF_ORDER, -1
            self.producers[producer] = deque(maxlen=5)
            self.epochs[producer] = epoch
        if not self.producers[producer] and sequence:
            return OUT_OF_ORDER, -1
        end = self.end
        code, base = super().append(batch)
        if not code and self.end > end:
            values = [record[3] or b"" for record in records.parse(batch, 1 << 24)]
            self.open.setdefault(producer, []).extend(values)
        return code, base

    def mark(self, commit: bool, producer: int, epoch: int) -> None:
        values = self.open.pop(producer, [])
        if commit:
            self.committed += values
        if epoch > self.epochs.get(producer, -1):
            self.epochs[producer] = epoch
            self.producers[producer] = deque(maxlen=5)
        self.end += 1


@dataclass
class Transaction:
    """What the coordinator knows of a transactional id."""

    producer: int
    epoch: int = -1
    previous: int = -1
    """The epoch before the last bump, whose owner may ask again."""
    ongoing: bool = False
    ended: bool | None = None
    """How the last transaction ended."""
    partitions: set[Partition] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)
    offsets: dict[tuple[str, Partition], int] = field(default_factory=dict)


class FakeTransactions(FakeCluster):
    """Brokers with a coordinator."""

    apis: ClassVar = {
        **APIS,
        0: ("produce", 12),
        10: ("find_coordinator", 4),
        22: ("init_producer_id", 5),
        24: ("add_partitions_to_txn", 3),
        25: ("add_offsets_to_txn", 3),
        26: ("end_txn", 5),
        28: ("txn_offset_commit", 5),
    }

    def __init__(self, nodes: int = 1, partitions: int = 1, *, second: bool = True) -> None:
        super().__init__(nodes, partitions)
        self.logs = [TransactionalLog() for _ in range(partitions)]
        self.topics = {"t": list(self.logs)}
        self.second = second
        self.coordinator = 0
        self.known: dict[str, Transaction] = {}
        self.offsets: dict[tuple[str, Partition], int] = {}
        self.announced: list[list[Partition]] = []

    async def api_versions(self, node: int, request: Any, error: int) -> dict[str, Any]:
        level = 2 if self.second else 1
        features = [{"name": "transaction.version", "max_version_level": level, "min_version_level": level}]
        answer = await super().api_versions(node, request, error)
        return {**answer, "finalized_features_epoch": 1, "finalized_features": features}

    async def find_coordinator(self, node: int, request: Any, error: int) -> dict[str, Any]:
        [key] = request.coordinator_keys
        place = {"node_id": self.coordinator, "host": "127.0.0.1", "port": self.ports[self.coordinator]}
        return {"coordinators": [{"key": key, "error_code": error, "error_message": None, **place}]}

    async def init_producer_id(self, node: int, request: Any, error: int) -> dict[str, Any]:
        if request.transactional_id is None:
            return await super().init_producer_id(node, request, error)
        if not error and node != self.coordinator:
            error = NOT_COORDINATOR
        if not error:
            if request.transactional_id not in self.known:
                self._next_producer += 1
                self.known[request.transactional_id] = Transaction(self._next_producer)
            found = self.known[request.transactional_id]
            given = int(request.producer_epoch)
            if request.producer_id >= 0 and given == found.previous:
                return {"error_code": 0, "producer_id": found.producer, "producer_epoch": found.epoch}
            if request.producer_id >= 0 and (request.producer_id, given) != (found.producer, found.epoch):
                return {"error_code": FENCED, "producer_id": -1, "producer_epoch": -1}
            if found.ongoing:
                # As Kafka does: aborted under a new epoch, which fences the owner as well, and then asked again.
                found.previous, found.epoch = -1, found.epoch + 1
                self._end(found, False)
                return {"error_code": CONCURRENT, "producer_id": -1, "producer_epoch": -1}
            found.previous, found.epoch = (given if given >= 0 else -1), found.epoch + 1
            found.ended = None
            return {"error_code": 0, "producer_id": found.producer, "producer_epoch": found.epoch}
        return {"error_code": error, "producer_id": -1, "producer_epoch": -1}

    def _check(self, node: int, transactional_id: str, producer: int, epoch: int) -> int:
        if node != self.coordinator:
            return NOT_COORDINATOR
        found = self.known[transactional_id]
        return 0 if (producer, epoch) == (found.producer, found.epoch) else FENCED

    async def add_partitions_to_txn(self, node: int, request: Any, error: int) -> dict[str, Any]:
        name = request.v3_and_below_transactional_id
        identity = (request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
        code = error or self._check(node, name, *identity)
        asked = [(topic.name, int(each)) for topic in request.v3_and_below_topics for each in topic.partitions]
        self.announced.append(asked)
        if not code:
            self.known[name].ongoing = True
            self.known[name].partitions.update(asked)
        results = [{"partition_index": index, "partition_error_code": code} for _, index in asked]
        return {"results_by_topic_v3_and_below": [{"name": "t", "results_by_partition": results}]}

    async def add_offsets_to_txn(self, node: int, request: Any, error: int) -> dict[str, Any]:
        code = error or self._check(node, request.transactional_id, request.producer_id, request.producer_epoch)
        if not code:
            self.known[request.transactional_id].ongoing = True
            self.known[request.transactional_id].groups.add(request.group_id)
        return {"error_code": code}

    async def txn_offset_commit(self, node: int, request: Any, error: int) -> dict[str, Any]:
        code = error or self._check(node, request.transactional_id, request.producer_id, request.producer_epoch)
        found = self.known[request.transactional_id]
        if not code and request.__version__ >= 5:
            found.ongoing = True
            found.groups.add(request.group_id)
        if not code and request.group_id not in found.groups:
            code = INVALID_STATE
        topics = []
        for topic in request.topics:
            for each in topic.partitions:
                if not code:
                    found.offsets[request.group_id, (topic.name, int(each.partition_index))] = int(
                        each.committed_offset
                    )
            partitions = [{"partition_index": each.partition_index, "error_code": code} for each in topic.partitions]
            topics.append({"name": topic.name, "partitions": partitions})
        return {"topics": topics}

    async def end_txn(self, node: int, request: Any, error: int) -> dict[str, Any]:
        second = request.__version__ >= 5
        code = error or (0 if node == self.coordinator else NOT_COORDINATOR)
        found = self.known[request.transactional_id]
        commit = request.committed
        if not code and second and request.producer_epoch == found.previous and found.ended is commit:
            return {"error_code": 0, "producer_id": found.producer, "producer_epoch": found.epoch}
        code = code or self._check(node, request.transactional_id, request.producer_id, request.producer_epoch)
        if not code and not found.ongoing and not (second and not commit) and found.ended is not commit:
            code = INVALID_STATE
        if not code:
            again = not found.ongoing and not second
            if not again:
                if second:
                    found.previous, found.epoch = found.epoch, found.epoch + 1
                self._end(found, commit)
                if found.epoch == LAST_EPOCH:
                    self._next_producer += 1
                    found.producer, found.epoch = self._next_producer, 0
        answer = {"error_code": code}
        if second:
            answer |= {"producer_id": -1 if code else found.producer, "producer_epoch": -1 if code else found.epoch}
        return answer

    def _end(self, found: Transaction, commit: bool) -> None:
        for topic, index in found.partitions:
            log = self.topics[topic][index]
            assert isinstance(log, TransactionalLog)
            log.mark(commit, found.producer, found.epoch)
        if commit:
            self.offsets |= found.offsets
        found.partitions, found.groups, found.offsets = set(), set(), {}
        found.ongoing, found.ended = False, commit

    async def produce(self, node: int, request: Any, error: int) -> dict[str, Any] | None:
        responses = []
        for topic in request.topic_data:
            partitions = []
            for each in topic.partition_data:
                code, base = error, -1
                if not code:
                    code, base = self._write(node, request, (topic.name, int(each.index)), bytearray(each.records))
                partitions.append({"index": each.index, "error_code": code, "base_offset": base})
            responses.append({"name": topic.name, "partition_responses": partitions})
        return {"responses": responses}

    def _write(self, node: int, request: Any, place: Partition, batch: bytearray) -> tuple[int, int]:
        log = self.topics[place[0]][place[1]]
        if log.leader != node:
            return NOT_LEADER, -1
        header = HEADER.unpack_from(batch)
        assert header[5] & TRANSACTIONAL
        producer, epoch = header[9:11]
        found = self.known[request.transactional_id]
        if (producer, epoch) != (found.producer, found.epoch):
            return STALE_EPOCH, -1
        if request.__version__ >= 12:
            found.ongoing = True
            found.partitions.add(place)
        if place not in found.partitions:
            return INVALID_STATE, -1
        return log.append(batch)
