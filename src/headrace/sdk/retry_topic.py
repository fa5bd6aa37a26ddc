"""The retry topic of a group, over Kafka's wire: messages wait there for their next attempt.

A group reads a partition in order: one that waits for an hour would hold up all behind it, or be kept in memory with
them. So every partition of the topic is of one wait. What lies in it waits equally long and is due in the order in
which it came: the consumer stops at the first that is not due, and goes back to it when it is. A message that has to
wait longer than that goes on to the next partition, until its time has come.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from headrace.format.headers import RETRY_AT
from headrace.sdk.puller import Puller

WAITS = (0.0, 1.0, 5.0, 30.0, 120.0, 600.0, 3_600.0)
"""Seconds, of the partitions in turn; in the first, what has less than a second left."""
# What is so much too short for a partition waits there all the same, until it is due: it has lost that on its way.
SLACK_SECONDS = 0.5
# A consumer rests so long where it stopped, because it has to fetch again what lies there.
REST_SECONDS = 0.05


def partition_for(seconds: float, turn: int, partitions: int) -> int:
    """Where a message goes that is to wait so long. Where several are of one wait, they have it in turn."""
    kind = max([index for index, wait in enumerate(WAITS) if wait - SLACK_SECONDS <= seconds], default=0)
    alike = range(kind, partitions, len(WAITS))
    return alike[turn % len(alike)]


def due_of(raw: Any) -> float:
    """When a message is to be retried."""
    for name, value in raw.headers() or ():
        if name == RETRY_AT:
            return int(value or b"0") / 1_000
    return 0.0


class RetryPuller(Puller):
    """A consumer that hands over what has waited long enough, for its try or for the next partition."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        # Partitions at which it stopped: until when, and the offset of the first that is not due.
        self._stops: dict[int, tuple[float, int]] = {}

    def _consume(self) -> None:
        self._stops.clear()
        super()._consume()

    def _poll(self, count: int, seconds: float) -> list[Any]:
        if not self._paused:
            self._go_on(time.time())
        if self._stops:
            seconds = min(seconds, max(min(until for until, _ in self._stops.values()) - time.time(), 0.0))
        found = super()._poll(count, seconds)
        now = time.time()
        return [each for each in found if each.error() is not None or self._is_due(each, now)]

    def _is_due(self, raw: Any, now: float) -> bool:
        partition = raw.partition()
        if partition not in self._stops:
            wait = WAITS[partition % len(WAITS)] or WAITS[1]
            until = min(raw.timestamp()[1] / 1_000 + wait, due_of(raw))
            if until <= now:
                return True
            self._stops[partition] = (max(until, now + REST_SECONDS), raw.offset())
        # Also what came after it stopped, which is fetched again.
        self._consumer.pause([TopicPartition(self._topic, partition)])
        return False

    def _go_on(self, now: float) -> None:
        for partition, (until, offset) in list(self._stops.items()):
            if until > now:
                continue
            place = TopicPartition(self._topic, partition, offset)
            try:
                self._consumer.resume([place])
                self._consumer.seek(place)
                del self._stops[partition]
            except KafkaException:
                # It was given to this consumer just now, and is not being read yet.
                self._stops[partition] = (now + REST_SECONDS, offset)

    def _on_assigned(self, consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
        # Left by messages that were fetched just before their partition was revoked.
        self._forget_stops(partitions)
        super()._on_assigned(consumer, partitions)

    def _on_revoked(self, consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
        self._forget_stops(partitions)
        super()._on_revoked(consumer, partitions)

    def _forget_stops(self, partitions: Sequence[TopicPartition]) -> None:
        for each in partitions:
            self._stops.pop(each.partition, None)
