"""The few administrative requests of a benchmark, written and read by kio: nothing here is measured."""

from __future__ import annotations

import io
import socket
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from importlib import import_module
from typing import Any

from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType
from kio.static.primitive import f64, i8, i16, i32, i32Timedelta, i64

SECONDS = 60.0
LATEST = -1
GROUP, TRANSACTION = 0, 1


class NotYet(Exception):
    """A partition has no leader, or none that knows it yet."""


class Admin:
    """One connection to a broker."""

    def __init__(self, host: str, port: int, seconds: float = SECONDS) -> None:
        self._socket = socket.create_connection((host, port), timeout=seconds)

    def __enter__(self) -> Admin:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self, api: str, version: int, make: Any) -> Any:
        """Send what `make(module)` gives of the request's module; the reply's entity."""
        module = import_module(f"kio.schema.{api}.v{version}.request")
        request = make(module)
        assert request.__type__ is EntityType.request
        out = io.BytesIO()
        header = request.__header_schema__
        fields = {"request_api_key": request.__api_key__, "request_api_version": i16(version), "correlation_id": i32(1)}
        fields["client_id"] = "bench"
        entity_writer(header)(out, header(**fields))
        entity_writer(type(request))(out, request)
        self._socket.sendall(len(out.getvalue()).to_bytes(4) + out.getvalue())
        reply = self._exactly(int.from_bytes(self._exactly(4)))
        name = type(request).__name__.removesuffix("Request") + "Response"
        kind = getattr(import_module(f"kio.schema.{api}.v{version}.response"), name)
        _, position = entity_reader(kind.__header_schema__)(reply, 0)
        entity, _ = entity_reader(kind)(reply, position)
        return entity

    def _exactly(self, size: int) -> bytes:
        got = bytearray()
        while len(got) < size:
            more = self._socket.recv(size - len(got))
            if not more:
                raise ConnectionError("the server closed the connection")
            got += more
        return bytes(got)

    def brokers(self) -> int:
        """How many brokers the cluster knows."""

        def make(of: Any) -> Any:
            return of.MetadataRequest(
                topics=(), include_cluster_authorized_operations=False, include_topic_authorized_operations=False
            )

        return len(self.ask("metadata", 8, make).brokers)

    def create(self, topic: str, partitions: int, settings: dict[str, str], replicas: Sequence[int] = ()) -> None:
        """Make a topic and wait until each of its partitions answers; `replicas` has the nodes of each of them."""
        self.ask(
            "create_topics",
            5,
            lambda of: of.CreateTopicsRequest(
                topics=(
                    of.CreatableTopic(
                        name=topic,
                        num_partitions=i32(-1 if replicas else partitions),
                        replication_factor=i16(-1 if replicas else 1),
                        assignments=tuple(
                            of.CreatableReplicaAssignment(
                                partition_index=i32(index), broker_ids=tuple(map(i32, replicas))
                            )
                            for index in range(partitions if replicas else 0)
                        ),
                        configs=tuple(
                            of.CreatableTopicConfig(name=key, value=value) for key, value in settings.items()
                        ),
                    ),
                ),
            ),
        )
        until = time.monotonic() + SECONDS
        while True:
            try:
                self.ends(topic, partitions)
                return
            except NotYet:
                if time.monotonic() > until:
                    raise
            time.sleep(0.05)

    def delete(self, topic: str) -> None:
        self.ask(
            "delete_topics",
            4,
            lambda of: of.DeleteTopicsRequest(
                topic_names=(topic,), timeout=i32Timedelta.parse(timedelta(seconds=SECONDS))
            ),
        )

    def set_quotas(self, user: str, values: Mapping[str, float]) -> None:
        """Set quotas of a user. Raises RuntimeError where that is refused."""
        reply = self.ask(
            "alter_client_quotas",
            1,
            lambda of: of.AlterClientQuotasRequest(
                entries=(
                    of.EntryData(
                        entity=(of.EntityData(entity_type="user", entity_name=user),),
                        ops=tuple(of.OpData(key=key, value=f64(value), remove=False) for key, value in values.items()),
                    ),
                ),
                validate_only=False,
            ),
        )
        if reply.entries[0].error_code:
            raise RuntimeError(f"quotas are refused: {reply.entries[0].error_code!r}")

    def coordinator(self, key: str, kind: int) -> None:
        """Wait until a group or a transactional id has a coordinator: the first request creates its topic."""
        until = time.monotonic() + SECONDS
        while (
            self.ask(
                "find_coordinator", 4, lambda of: of.FindCoordinatorRequest(key_type=i8(kind), coordinator_keys=(key,))
            )
            .coordinators[0]
            .error_code
        ):
            if time.monotonic() > until:
                raise NotYet(f"{key} has no coordinator")
            time.sleep(0.05)

    def own(self, transactional_id: str) -> tuple[int, int]:
        """Take a transactional id: the producer id and its epoch."""
        self.coordinator(transactional_id, TRANSACTION)
        until = time.monotonic() + SECONDS
        while (
            reply := self.ask(
                "init_producer_id",
                5,
                lambda of: of.InitProducerIdRequest(
                    transactional_id=transactional_id,
                    transaction_timeout=i32Timedelta.parse(timedelta(seconds=SECONDS)),
                ),
            )
        ).error_code:
            if time.monotonic() > until:
                raise NotYet(f"no producer id for {transactional_id}: {reply.error_code!r}")
            time.sleep(0.05)
        return int(reply.producer_id), int(reply.producer_epoch)

    def ends(self, topic: str, partitions: int, *, committed: bool = False) -> dict[int, int]:
        """The end offset of each partition; the last stable one for committed readers."""
        reply = self.ask(
            "list_offsets",
            6,
            lambda of: of.ListOffsetsRequest(
                replica_id=i32(-1),
                isolation_level=i8(int(committed)),
                topics=(
                    of.ListOffsetsTopic(
                        name=topic,
                        partitions=tuple(
                            of.ListOffsetsPartition(partition_index=i32(each), timestamp=i64(LATEST))
                            for each in range(partitions)
                        ),
                    ),
                ),
            ),
        )
        for each in reply.topics[0].partitions:
            if each.error_code:
                raise NotYet(f"the end of {topic}-{each.partition_index} is not known: {each.error_code!r}")
        return {int(each.partition_index): int(each.offset) for each in reply.topics[0].partitions}
