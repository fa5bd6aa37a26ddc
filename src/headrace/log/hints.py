"""The two sparse indexes of a segment, offsets and times, kept in step with its batches; and what they lead to.

Both are hints (see `index.py`): a look-up begins where an entry says and ends with a short walk over batch headers; a
walk that is too long, or starts at a batch that the index did not mean, has the index made anew.

The caller says how many bytes of the file are valid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from headrace.errors import CorruptLog
from headrace.format.batch import HEADER_BYTES, MAGIC, NO_TIMESTAMP, PREFIX, PREFIX_BYTES, STEP
from headrace.log.files import OpenFiles
from headrace.log.index import OffsetIndex
from headrace.log.names import segment_path
from headrace.log.places import Place
from headrace.log.scan import WALK_BYTES, Step, steps
from headrace.log.timeindex import TimeIndex
from headrace.runtime.disk import Disk


class Hints:
    """Offset index and time index of one segment."""

    __slots__ = (
        "_base", "_files", "_index", "_interval", "_max_offset", "_max_timestamp", "_path", "_since_entry", "_times",
        "ready",
    )  # fmt: skip

    def __init__(
        self, disk: Disk, files: OpenFiles, folder: str, base: int, interval: int, ending: str, *, new: bool
    ) -> None:
        self._files = files
        self._path = segment_path(folder, base, ".log" + ending)
        self._base = base
        self._interval = interval
        self._index = OffsetIndex(disk, segment_path(folder, base, ".index" + ending), new=new)
        self._times = TimeIndex(disk, segment_path(folder, base, ".timeindex" + ending), new=new)
        # Whether both are in memory and complete, and what follows is known.
        self.ready = new
        self._since_entry = 0
        self._max_timestamp: int | None = NO_TIMESTAMP if new else None
        # Where the batch with the largest timestamp ends, relative to the base.
        self._max_offset = 0

    # --- keeping in step ---

    def note(self, position: int, relative: int, size: int, timestamp: int) -> None:
        """Take a batch into account that stands behind all others."""
        if timestamp > self._max_timestamp:  # type: ignore[operator]
            self._max_timestamp = timestamp
            self._max_offset = relative
        if self._since_entry > self._interval:
            self._index.append(relative, position)
            self._times.add(self._max_timestamp, self._max_offset)  # type: ignore[arg-type]
            self._since_entry = size
        else:
            self._since_entry += size

    def load(self) -> None:
        """Bring what the files hold into memory."""
        self._index.load()
        self._times.load()

    def unload(self) -> None:
        """Nothing will be added any more: what the files hold is enough."""
        self.ready = False
        self._index.unload()
        self._times.unload()

    def cut(self, position: int) -> None:
        """Let both, which are in memory, and their files end before `position`."""
        self._index.cut(position)
        last = self._index.last()
        self._times.cut(last[0] if last else -1)
        self._index.cut_file()
        self._times.cut_file()
        self.ready = False

    def complete(self, size: int) -> tuple[int, int]:
        """Bring both, which are in memory, up to the end of the batches; last offset and position there."""
        entry = self._index.last()
        if entry is not None and not self._fits(size, *entry):
            self._index.clear()
            entry = None
        indexed = entry[1] if entry else 0
        start = 0
        newest = self._times.last()
        if newest is not None:
            start = self._position_of(size, newest[1])
            step = next(self._steps(start, size), None)
            if step is None or (step[4], step[1] + step[3] - self._base) != newest:
                self._times.clear()
                newest, start = None, 0
        max_timestamp, max_offset = newest or (NO_TIMESTAMP, 0)
        since, last_offset, reached = 0, self._base - 1, 0
        for position, base, length, delta, timestamp in self._steps(min(start, indexed), size):
            last_offset, reached = base + delta, position + length
            if timestamp > max_timestamp:
                max_timestamp, max_offset = timestamp, last_offset - self._base
            if position == indexed:
                since = 0
            elif since > self._interval:
                self._times.add(max_timestamp, max_offset)
                if position > indexed:
                    self._index.append(last_offset - self._base, position)
                since = 0
            since += length
        self.ready = reached == size
        self._max_timestamp = max_timestamp if self.ready else None
        self._max_offset, self._since_entry = max_offset, since
        return last_offset, reached

    def pending(self, size: int) -> list[Callable[[], None]]:
        """What is to be written for the files to hold all that is known. Ask on the loop; the answers block."""
        if self.ready and size:
            self._times.add(self.max_timestamp(size), self._max_offset)
        return [write for write in (self._index.pending(), self._times.pending()) if write is not None]

    # --- looking up ---

    def max_timestamp(self, size: int) -> int:
        """The largest timestamp of a batch, -1 if there is none. May walk over headers when first asked."""
        if self._max_timestamp is None:
            entry = self._times.last()
            start = self._time_position(size, entry) if entry else 0
            if self._max_timestamp is None:
                # Entries that a power cut took leave no trace, so what stands behind the last one is looked at too.
                walked = self._steps(start, size)
                self._max_timestamp = max((step[4] for step in walked), default=NO_TIMESTAMP)
        return self._max_timestamp

    def last_offset(self, size: int) -> int:
        """The last offset of the last batch; one below the base if there is none."""
        entry = self._index.last()
        if entry is not None and not self._fits(size, *entry):
            self._remake_index(size)
            entry = self._index.last()
        last_offset = self._base - 1
        for _, base, _, delta, _ in self._steps(entry[1] if entry else 0, size):
            last_offset = base + delta
        return last_offset

    def locate(self, size: int, offset: int) -> int:
        """The position of the batch that holds `offset`, or of the first behind it; where the batches end if there is
        none. Raises CorruptLog if they end early."""
        if offset <= self._base:
            return 0
        entry = self._index.floor(offset - self._base)
        start = reached = entry[1] if entry else 0
        last_offset = self._base - 1
        for position, base, length, delta, _ in self._steps(start, size):
            last_offset = base + delta
            if position == start and entry is not None and last_offset - self._base != entry[0]:
                break
            if last_offset >= offset:
                return position
            reached = position + length
            if position - start > self._interval and not self._index.in_memory:
                # This batch would have an entry, and the look-up would have found it, were the index whole.
                self.load()
                self.complete(size)
        if entry is not None and reached == start:
            # No batch, or another one, stands where the index said.
            self._remake_index(size)
            return self.locate(size, offset)
        if reached != size and last_offset != offset - 1:
            raise CorruptLog(f"the batches of {self._path} end at position {reached} of {size}, before offset {offset}")
        return reached

    def place(self, size: int, offset: int) -> Place:
        """The same, with what a reader needs to go on from there."""
        position = self.locate(size, offset)
        if position == size:
            return Place(size, 0)
        head = self._files.get(self._path).read(position, PREFIX_BYTES)
        length = PREFIX.unpack(head)[1] + PREFIX_BYTES if len(head) == PREFIX_BYTES else 0
        if not HEADER_BYTES <= length <= size - position:
            raise CorruptLog(f"no whole batch stands at position {position} of {self._path}")
        return Place(position, length, self._index.ahead(offset - self._base))

    def boundary(self, size: int, stop: int, entries: bytes) -> Step | None:
        """The batch that begins at or before `stop` and ends behind it, if that can be told by one look at what is in
        the page cache. Never waits."""
        entry = self._index.floor_at(stop, entries)
        if entry is None:
            return None
        position = entry[1]
        buffer = self._files.get(self._path).read_now(position, min(WALK_BYTES, size - position))
        at, end = 0, len(buffer) - HEADER_BYTES
        while at <= end:
            base, length, magic, delta, timestamp = STEP.unpack_from(buffer, at)
            length += PREFIX_BYTES
            last = base + delta - self._base
            if magic != MAGIC or length < HEADER_BYTES or (at == 0 and last != entry[0]) or position + length > size:
                return None  # what the next look-up is to find out
            if position + length > stop:
                return position, base, length, delta, timestamp
            position += length
            at += length
        return None

    def locate_time(self, size: int, timestamp: int) -> int | None:
        """The position of the first batch with a record at or after `timestamp`, if there is one."""
        if size == 0 or self.max_timestamp(size) < timestamp:
            return None
        entry = self._times.floor(timestamp - 1)
        start = self._time_position(size, entry) if entry else 0
        for position, _, _, _, newest in self._steps(start, size):
            if newest >= timestamp:
                return position
        return None

    def _steps(self, position: int, size: int) -> Iterator[Step]:
        return steps(self._files.get(self._path), self._base, position, size)

    def _time_position(self, size: int, entry: tuple[int, int]) -> int:
        """Where the batch of an entry of the time index stands, if it is there; else the index is made anew, and 0."""
        start = self.locate(size, self._base + entry[1])
        step = next(self._steps(start, size), None)
        if step is not None and (step[4], step[1] + step[3] - self._base) == entry:
            return start
        self._index.load()
        self._times.clear()
        self.complete(size)
        return 0

    def _position_of(self, size: int, relative: int) -> int:
        """Where the batch that ends at a relative offset stands, as far as the index in memory and a walk can tell."""
        entry = self._index.floor(relative)
        for position, base, _, delta, _ in self._steps(entry[1] if entry else 0, size):
            if base + delta - self._base >= relative:
                return position
        return size

    def _fits(self, size: int, relative: int, position: int) -> bool:
        """Whether a batch with this last offset stands at this position."""
        if position + HEADER_BYTES > size:
            return False
        head = self._files.get(self._path).read(position, HEADER_BYTES)
        if len(head) < HEADER_BYTES:
            return False
        base, _, magic, delta, _ = STEP.unpack_from(head)
        return bool(magic == MAGIC and base + delta - self._base == relative)

    def _remake_index(self, size: int) -> None:
        self._index.clear()
        self._times.load()
        self.complete(size)
