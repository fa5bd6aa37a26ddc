"""Names of the headers that Headrace adds to a message: the broker's queues, the framework, and the tools that read
them write these and no others."""

from __future__ import annotations

# Of a dead letter: its origin, and how it died.
ORIGIN_TOPIC = "headrace-origin-topic"
ORIGIN_PARTITION = "headrace-origin-partition"
ORIGIN_OFFSET = "headrace-origin-offset"
ORIGIN_QUEUE = "headrace-origin-queue"
ATTEMPTS = "headrace-attempts"
ERROR = "headrace-error"
DEAD_AT = "headrace-dead-at"
FOR_QUEUE = "headrace-for-queue"
REDRIVEN = "headrace-redriven"
PARKED_FROM = "headrace-parked-from"
"""Partition and offset, with a slash between them, that a message had before its queue moved it to its parking."""

# Of a message in the framework's retry topic, for topics without a queue.
RETRY_AT = "headrace-retry-at"
ATTEMPT = "headrace-attempt"
ORIGIN = "headrace-origin"
"""The message's id: topic, partition and offset."""
