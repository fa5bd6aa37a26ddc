"""What a job's driver has found, into a topic, exactly once.

The rows of a commit are few: the driver writes them itself, in one transaction, and decides about it as the sink does
(`sink_commit.py`), under the commit's number. A commit that is published again is recognised.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

import pyarrow as pa

from headrace.client import Client
from headrace.pipeline.broker import make_client
from headrace.pipeline.options import SinkOptions, parse_sink
from headrace.pipeline.sink_commit import CommitCoordinator
from headrace.pipeline.sink_task import write_transaction

T = TypeVar("T")


class Publisher:
    """Publishes the commits of one application, one after the other."""

    def __init__(
        self, bootstrap: str, topic: str, application: str, connection: Mapping[str, str] | None = None
    ) -> None:
        given = {"kafka.bootstrap.servers": bootstrap, "topic": topic, "applicationId": application}
        given |= connection or {}
        self._options = parse_sink(given, streaming=True)

    def publish(self, query: str, commit: int, keys: Sequence[str], values: Sequence[str]) -> None:
        """Write a commit's rows unless they are written. `query` is another one when commits are counted anew."""
        if not values:
            return
        state = self._run(lambda decisions: decisions.prepare())
        note = state.note
        if note is not None and (note.query, note.batch) == (query, commit):
            return
        block = pa.record_batch({"key": pa.array(keys, pa.string()), "value": pa.array(values, pa.string())})
        opened = write_transaction(self._options, f"{self._options.application}-0-0", iter([block]))
        assert opened is not None
        self._run(lambda decisions: decisions.commit(state, query, commit, [opened]))

    def _run(self, what: Callable[[CommitCoordinator], Awaitable[T]]) -> T:
        async def asking() -> T:
            async with make_client(self._options) as client:
                return await what(_decisions(client, self._options))

        return asyncio.run(asking())


def _decisions(client: Client, options: SinkOptions) -> CommitCoordinator:
    return CommitCoordinator(client, options.application, fail_on_data_loss=options.fail_on_data_loss)
