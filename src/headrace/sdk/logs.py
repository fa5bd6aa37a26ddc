"""What an application writes to its log about messages.

Every send that fails, every message that fails, is retried or is rejected has a line; of those that went well a share,
chosen as the broker chooses whose deliveries it keeps (docs/observing.md): lines and events are of the same messages.
At `debug` all of them have one. Level and share can be changed at any time.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from traceback import format_exception, print_exc
from typing import TYPE_CHECKING, Any

import structlog

from headrace.format.sampling import is_kept, kept, seed_of, threshold
from headrace.sdk.fetched_batch import FetchedMessages
from headrace.sdk.message import Message, Outgoing
from headrace.sdk.outcome import ACK
from headrace.sdk.tracing import trace_id_of

if TYPE_CHECKING:
    from headrace.sdk.observer import Watch

log = structlog.get_logger("headrace.sdk")

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
KEY_CHARACTERS = 200


class Logs:
    def __init__(self, app: str, level: str = "info", sample: float = 0.01) -> None:
        self._app = app
        self._seeds: dict[tuple[str, int], int] = {}
        self.level = level
        self.sample = sample

    @property
    def level(self) -> str:
        """What is less grave is not written."""
        return self._level

    @level.setter
    def level(self, level: str) -> None:
        if level not in LEVELS:
            raise ValueError(f"log level must be one of {', '.join(LEVELS)} (got {level!r})")
        self._level = level
        self._least = LEVELS[level]

    @property
    def sample(self) -> float:
        """The share, 0 to 1, of messages that went well and have a line all the same."""
        return self._sample

    @sample.setter
    def sample(self, share: float) -> None:
        if not 0 <= share <= 1:
            raise ValueError(f"log sample must be a share from 0 to 1 (got {share})")
        self._sample = share
        self._below = threshold(share)

    def unsent(self, messages: Sequence[Outgoing], error: Exception, seconds: float) -> None:
        """Messages could not be sent."""
        if self._least <= LEVELS["error"]:
            for each in messages:
                fields: dict[str, Any] = {
                    "app": self._app,
                    "topic": each.topic,
                    "partition": each.partition,
                    "key": _format_key(each.key),
                    "trace": trace_id_of(each.headers),
                    "result": "failed",
                    "reason": f"{type(error).__name__}: {error}",
                    "seconds": round(seconds, 6),
                }
                _write("error", "not sent", fields)

    def handled(
        self,
        subject: Watch,
        messages: Sequence[Message],
        result: str,
        reason: str,
        seconds: float,
        *,
        tried: int = 1,
        error: BaseException | None = None,
    ) -> None:
        """A handler has finished messages, or they are rejected without one. `tried`: how often it was called since
        they were delivered."""
        if result == ACK:
            if self._least > LEVELS["info"]:
                return
            level, messages = self._sample_lines(messages)
        else:
            level = "warning"
        if LEVELS[level] < self._least:
            return
        for message in messages:
            fields: dict[str, Any] = {
                "app": self._app,
                "topic": message.topic,
                "partition": message.partition,
                "offset": message.offset,
                "id": message.id,
                "key": _format_key(message.key),
                "group": subject.group,
                "handler": subject.handler,
                "attempt": message.attempt + tried - 1,
                "result": result,
                "reason": reason,
                "seconds": round(seconds, 6),
            }
            if trace := trace_id_of(message.headers):
                fields["trace"] = trace
            if error is not None:
                # As text, because what a console makes of an error, with colours and variables, holds up the loop for a
                # tenth of a second.
                fields["exception"] = "".join(format_exception(error))
            _write(level, "handled", fields)

    def late(self, subject: Watch, message: str, operation: str) -> None:
        """A settlement came too late."""
        if self._least <= LEVELS["warning"]:
            fields = {
                "app": self._app,
                "topic": subject.topic,
                "group": subject.group,
                "handler": subject.handler,
                "id": message,
                "result": operation,
                "reason": "the message was another consumer's by then, or dead",
            }
            _write("warning", "settled too late", fields)

    def _sample_lines(self, messages: Sequence[Message]) -> tuple[str, Sequence[Message]]:
        """Which of those that went well have a line, and of what level."""
        if self._least <= LEVELS["debug"]:
            return "debug", messages
        if not self._below:
            return "info", ()
        if isinstance(messages, FetchedMessages):
            return "info", self._select(messages)
        return "info", [each for each in messages if self._is_watched(each)]

    def _select(self, messages: FetchedMessages) -> list[Message]:
        """The same for many at once, of which only those are made that have a line."""
        found = []
        for partition, first, count, at in messages.runs():
            for begin, last in kept([(first, first + count - 1)], self._seed(messages.topic, partition), self._below):
                found += [messages[at + offset - first] for offset in range(begin, last + 1)]
        return found

    def _is_watched(self, message: Message) -> bool:
        if message.offset < 0:
            return random.random() < self._sample
        seed = self._seed(message.topic, message.partition)
        return is_kept(message.offset, seed, self._below, message.key, message.headers.items())

    def _seed(self, topic: str, partition: int) -> int:
        place = (topic, partition)
        seed = self._seeds.get(place)
        if seed is None:
            seed = self._seeds[place] = seed_of(topic, partition)
        return seed


def _write(level: str, event: str, fields: dict[str, Any]) -> None:
    try:
        getattr(log, level)(event, **fields)
    except Exception:
        # A log that is set up badly, or a full disk, is reported where the standard library's logging reports it too.
        # It must not harm the application.
        print_exc()


def _format_key(key: bytes | None) -> str | None:
    return None if key is None else key[:KEY_CHARACTERS].decode(errors="backslashreplace")
