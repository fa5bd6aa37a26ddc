"""The stories of questions as Spark's state: what `transformWithState` is given.

All that is kept of a question is one value, which is read and written once in a batch. A timer wakes it when the
watermark has come to where it has something to tell.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from headrace.pipeline.jobs.sessions_story import BROKEN, EVENTS, Event, Output, Rules, Story

OUTPUT = "kind STRING, key STRING, value STRING"
# What has no question is gathered here.
NOWHERE = ""


@dataclass(frozen=True)
class Fields:
    """The names of an event's fields."""

    question: str = "question"
    event: str = "event"
    time: str = "at"
    sequence: str = "sequence"


class Questions(StatefulProcessor):
    """Events by question, into what is written of them."""

    def __init__(self, names: Fields, rules: Rules) -> None:
        self._names = names
        self._rules = rules

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._kept = handle.getValueState("story", "kept STRING")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        (name,) = key
        if name == NOWHERE:
            for row in rows:
                yield _row(_broken(row))
            return
        events: list[Event] = []
        for row in rows:
            found = self._event(row)
            if isinstance(found, Event):
                events.append(found)
            else:
                yield _row(found)
        if events:
            yield from self._turn(name, events, timerValues.getCurrentWatermarkInMs())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: N802, N803
        (name,) = key
        yield from self._turn(name, [], timerValues.getCurrentWatermarkInMs())

    def close(self) -> None:
        pass

    def _turn(self, name: str, events: list[Event], watermark: int) -> Iterator[Row]:
        kept = self._kept.get()
        story = Story.loaded(name, None if kept is None else kept[0])
        before = story.timer
        for output in story.take(events, watermark, self._rules):
            yield _row(output)
        if not story.empty:
            self._kept.update((story.kept(),))
        elif kept is not None:
            self._kept.clear()
        if before != story.timer:
            # One that has gone off is gone already.
            if before is not None and before > watermark:
                self._handle.deleteTimer(before)
            if story.timer is not None:
                self._handle.registerTimer(story.timer)

    def _event(self, row: Row) -> Event | Output:
        name = row["event"]
        if name not in EVENTS:
            return _broken(row, f"there is no event {name!r}. Use one of {', '.join(EVENTS)}.")
        try:
            data = json.loads(row["value"])
        except (ValueError, RecursionError) as error:
            # Spark's own reader of JSON is content with less.
            return _broken(row, f"it is not JSON: {error}")
        for known in (self._names.question, self._names.event, self._names.time, self._names.sequence):
            data.pop(known, None)
        return Event(name, row["at_ms"], row["sequence"], (row["partition"], row["offset"]), data)


class Counts(StatefulProcessor):
    """Changes by state, into how many questions are in it."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._count = handle.getValueState("count", "questions BIGINT, at BIGINT")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        (state,) = key
        count, at = self._count.get() or (0, 0)
        before = count
        for row in rows:
            count += row["by"]
            at = max(at, row["at"])
        self._count.update((count, at))
        if count != before:
            text = json.dumps({"state": state, "questions": count, "at": at}, separators=(",", ":"))
            yield Row(key=state, value=text)

    def close(self) -> None:
        pass


def _broken(row: Row, reason: str = "") -> Output:
    fields = {
        "topic": row["topic"],
        "partition": row["partition"],
        "offset": row["offset"],
        "reason": reason or row["reason"],
        "value": row["value"],
    }
    return Output(BROKEN, row["question"], json.dumps(fields, ensure_ascii=False, separators=(",", ":")))


def _row(output: Output) -> Row:
    return Row(kind=output.kind, key=output.key, value=output.value)
