"""The newest record of the group, kept in the node's own directory: what a lost etcd is rebuilt from."""

from __future__ import annotations

import asyncio
from functools import partial

import structlog

from headrace.cluster import identity
from headrace.cluster.records import Group
from headrace.errors import DataDirectoryInvalid
from headrace.runtime import Runtime

logger = structlog.get_logger("headrace.cluster")


class Seen:
    """Saves records as they come, one at a time: of those that come meanwhile the last."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._newest: tuple[Group, int] | None = None
        self._saved: tuple[Group, int] | None = None
        self._saving: asyncio.Task[None] | None = None
        self._problem = ""

    def note(self, group: Group, level: int) -> None:
        """The record is this, and the cluster's feature level."""
        self._newest = group, level
        if self._saving is None and self._newest != self._saved:
            self._saving = asyncio.get_running_loop().create_task(self._save())

    async def stop(self) -> None:
        """Save no more."""
        if self._saving is not None:
            self._saving.cancel()
            await asyncio.gather(self._saving, return_exceptions=True)

    async def _save(self) -> None:
        try:
            while (newest := self._newest) is not None and newest != self._saved:
                group, level = newest
                change = partial(identity.change, self._runtime.disk, seen=group, feature_level=level)
                await self._runtime.offload.run(change)
                self._saved = newest
                self._problem = ""
        except (OSError, DataDirectoryInvalid) as error:
            # It is tried again with each look at etcd.
            if str(error) != self._problem:
                logger.warning("the group's record could not be saved", error=str(error))
            self._problem = str(error)
        finally:
            self._saving = None
