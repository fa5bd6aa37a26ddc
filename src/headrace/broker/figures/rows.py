"""The rows of figures: in the order of their changes, and those that may mean trouble apart.

What is wrong is asked for every two seconds, and nearly no row says so. The few that may are known as they change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from headrace.broker.figures.changes import Changes, Row
from headrace.broker.figures.columns import GROUPS, QUEUES, TOPICS, place

Names = tuple[str, ...]

_OFFLINE, _BLOCKED, _PASSED_BY = (place(TOPICS, name) for name in ("offline", "blocked", "passed_by"))
_STUCK, _QUEUE_OLDEST = place(QUEUES, "stuck"), place(QUEUES, "oldest_ms")
_GROUP_OLDEST = place(GROUPS, "oldest_ms")
_MAY_MEAN_TROUBLE: Mapping[str, Callable[[Row], bool]] = {
    TOPICS: lambda row: bool(row[_OFFLINE] or row[_BLOCKED] or row[_PASSED_BY]),
    QUEUES: lambda row: bool(row[_STUCK]) or row[_QUEUE_OLDEST] is not None,
    GROUPS: lambda row: row[_GROUP_OLDEST] is not None,
}


class Rows:
    """Those of all kinds."""

    def __init__(self) -> None:
        self.changes = Changes()
        self._suspects: dict[str, dict[Names, None]] = {kind: {} for kind in _MAY_MEAN_TROUBLE}

    def get(self, kind: str, names: Names) -> Row | None:
        """A row as it is."""
        return self.changes.get((kind, *names))

    def put(self, kind: str, names: Names, row: Row) -> None:
        """A row as it is now."""
        self.changes.put((kind, *names), row)
        if _MAY_MEAN_TROUBLE[kind](row):
            self._suspects[kind][names] = None
        else:
            self._suspects[kind].pop(names, None)

    def drop(self, kind: str, names: Names) -> None:
        """A row is gone."""
        self.changes.drop((kind, *names))
        self._suspects[kind].pop(names, None)

    def suspects(self, kind: str) -> Iterable[Names]:
        """The rows of topics, queues or groups that may mean trouble."""
        return list(self._suspects[kind])
