"""What an NSQ client takes of the loop, where that is limited (`request_percentage`).

Its commands are counted, the work that they wait for, and the frames of its messages. A client that is over its share
is answered, and then neither read nor sent messages for as long as its quota asks.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from headrace.broker.quotas.bucket import Bucket
from headrace.broker.quotas.steps import timed

if TYPE_CHECKING:
    from headrace.doors.nsq.nsqd.connection import Connection


class Stretch:
    """A stretch of the loop that one client takes."""

    __slots__ = ("_began", "_bucket", "_connection")

    def __init__(self, connection: Connection, bucket: Bucket) -> None:
        self._connection = connection
        self._bucket = bucket
        self._began = connection.door.clock.boot_seconds()

    def end(self) -> None:
        """Count it. A client that has taken too much is neither read nor sent messages for a while."""
        connection = self._connection
        connection.stretch = None
        self._bucket.count(connection.door.clock.boot_seconds() - self._began, connection.door.loop.time())
        # What waits is done first: the next stretch ends with its answer.
        if connection.is_waiting or connection.lost:
            return
        if wait := self._bucket.wait(connection.door.loop.time()):
            connection.mute(wait)
            connection.hold_deliveries(wait)


def begin(connection: Connection) -> Stretch | None:
    """Begin a stretch, unless nothing is limited, or this is a part of one."""
    if connection.stretch is not None:
        return None
    bucket = connection.door.broker.quotas.loop_time(connection.session)
    if bucket is None:
        return None
    stretch = connection.stretch = Stretch(connection, bucket)
    return stretch


def timed_work(connection: Connection, work: Coroutine[Any, Any, Any]) -> Coroutine[Any, Any, Any]:
    """What a command waits for, counted."""
    bucket = connection.door.broker.quotas.loop_time(connection.session)
    return timed(work, bucket, connection.door.clock.boot_seconds)
