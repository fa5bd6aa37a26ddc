"""Records of a broker, Headrace or Apache Kafka, through Headrace's own client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from headrace.client import EARLIEST, Client
from headrace.client.errors import BrokerError, RequestTimeout
from headrace.client.tls import client_context
from headrace.errors import ConfigError
from headrace.format.error_codes import ErrorCode
from headrace.pipeline.connection_options import ConnectionOptions
from headrace.pipeline.login import read_credentials
from headrace.pipeline.option_values import InvalidOption
from headrace.pipeline.options import Partition, SourceOptions
from headrace.pipeline.origin import Origin, Range, range_lost

FETCH_BYTES = 4 << 20
GONE = (ErrorCode.offset_out_of_range, ErrorCode.unknown_topic_or_partition)


def make_client(options: ConnectionOptions) -> Client:
    """A client of the broker that the options name, as whom they say."""
    try:
        tls = client_context(options.ca, options.cert, options.key) if options.tls else None
    except ConfigError as error:
        raise InvalidOption(str(error)) from None
    return Client(
        options.bootstrap,
        tls=tls,
        credentials=read_credentials(options),
        client_id=options.client_id,
        timeout=options.timeout,
    )


class BrokerOrigin:
    """A broker, or several."""

    def __init__(self, client: Client, name: str, timeout: float) -> None:
        self._client = client
        self._timeout = timeout
        self.name = name

    @classmethod
    @asynccontextmanager
    async def open(cls, options: SourceOptions) -> AsyncIterator[Origin]:
        async with make_client(options) as client:
            yield cls(client, options.bootstrap, options.timeout)

    async def topics(self) -> Mapping[str, int]:
        return {topic.name: len(topic.partitions) for topic in await self._client.cluster.topics()}

    async def offsets(self, wanted: Mapping[Partition, int], *, committed: bool) -> dict[Partition, int]:
        if not wanted:
            return {}
        found = await self._client.admin.list_offsets(wanted, committed=committed)
        return {each: entry.offset for each, entry in found.items()}

    async def group(self, name: str, partitions: Sequence[Partition]) -> dict[Partition, int]:
        found = await self._client.admin.committed(name, partitions)
        return {each: entry.offset for each, entry in found.items() if entry.offset >= 0}

    async def follow(self, group: str, offsets: Mapping[Partition, int]) -> None:
        await self._client.admin.commit(group, offsets)

    async def sizes(self, partitions: Sequence[Partition]) -> Mapping[Partition, int]:
        try:
            return await self._client.admin.sizes()
        except BrokerError as error:
            if error.error != ErrorCode.cluster_authorization_failed:
                raise
            # They only make tasks and files of even size.
            # Imported here: whoever plans has nothing else to log.
            import structlog

            log = structlog.get_logger("headrace.pipeline.broker")
            log.warning("sizes of partitions are unknown: they take the right DESCRIBE on the cluster")
            return {}

    async def compacted(self, topics: Sequence[str]) -> set[str]:
        found = {topic: await self._client.admin.topic_config(topic) for topic in topics}
        return {
            topic
            for topic, config in found.items()
            if any(each.name == "cleanup.policy" and "compact" in (each.value or "") for each in config)
        }

    async def batches(
        self, wanted: Range, *, committed: bool, skip_lost: bool
    ) -> AsyncGenerator[list[memoryview], None]:
        partition = (wanted.topic, wanted.partition)
        consumer = self._client.consumer(
            committed=committed,
            max_bytes=FETCH_BYTES,
            partition_bytes=FETCH_BYTES,
            out_of_range=EARLIEST if skip_lost else None,
        )
        async with consumer:
            try:
                await consumer.assign({partition: wanted.start}, until={partition: wanted.end})
                while consumer.positions[partition] < wanted.end:
                    chunk = await asyncio.wait_for(consumer.chunk(), self._timeout)
                    yield chunk.batches
            except TimeoutError:
                if consumer.ends.get(partition, wanted.end) < wanted.end:
                    # It was longer when this was planned, and has nothing to wait for.
                    if skip_lost:
                        return
                    raise range_lost(wanted.topic, wanted.partition, wanted.start, wanted.end) from None
                raise RequestTimeout(
                    f"{self.name} has given nothing of {wanted.topic}-{wanted.partition} for {self._timeout:g} s; the "
                    "option timeout has it waited for longer"
                ) from None
            except BrokerError as error:
                if error.error not in GONE:
                    raise
                if not skip_lost:
                    raise range_lost(wanted.topic, wanted.partition, wanted.start, wanted.end) from None
