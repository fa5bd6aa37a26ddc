"""The journal: one sequential file that makes `sync` cheap.

Everything that must be durable and is not yet in its segment goes into a *frame*: one write, one wait for the device,
however many partitions and clients it serves. A frame is all or nothing (one checksum), which is what makes an append
to several partitions atomic. Frames carry a growing sequence number and the number of the acknowledged frame before
them, so recovery walks back from the newest whole frame and finds exactly those that were acknowledged: a frame whose
flush failed is not on that chain, even if it reached the disk.

Files are reserved in full, filled, and reused once a checkpoint has made their frames superfluous: what a reused file
still holds of its former life has lower sequence numbers and is passed over. A sync of what was never written before
must change the file system's own metadata and waits for everything that is under way there; so once there is traffic a
file is filled with zeros ahead of its use (`prepare`), off the way of those who wait. Where there is no room for a
whole file, a smaller one serves until a checkpoint has freed another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Protocol

from headrace.log.frames import FRAME, Frame, frame_at, frame_header, header_at
from headrace.runtime.disk import NO_SPACE, Buffer, Disk, File
from headrace.runtime.offload import SerialDone, SerialExecutor

FOLDER = "journal"
SUFFIX = ".journal"
MISSING = "is missing, and the last stop was not clean: what was acknowledged and is only there is lost with it"
MAGIC = 0x48524A31  # "HRJ1"
MAGIC_BYTES = MAGIC.to_bytes(4, "big")

# Files kept for reuse beyond the one being written.
SPARE_FILES = 2
# A file that was not prepared is filled with zeros up to this part of it, and used meanwhile. Another is prepared
# where there is traffic: this part of the current one has frames. But not so much that files are filled faster than it
# pays to prepare them: the current one has been so at the last looks.
HEAD = 1 / 16
TRAFFIC = 1 / 64
LOOKS = 4
ZEROS = bytes(1 << 20)
# Where there is no room for a whole file, this part of one is tried, and then this part of that, down to this size.
SMALLER = 1 / 4
LEAST_BYTES = 4_096
# A frame up to this is put together on the loop.
SMALL_BYTES = 65_536


@dataclass(slots=True)
class JournalFile:
    """A file of the journal, and what it is used for."""

    path: str
    file: File | None
    size: int
    last_sequence: int = 0
    filled: int = 0
    """Bytes of frames."""
    written: int = 0
    """Bytes from its beginning that were ever written."""
    sound: bool = True
    """Whether no write to it has failed."""
    roomy: bool = True
    """Whether it may take more of the disk than its frames need."""


class CheckpointedJournal(Protocol):
    """A journal, as checkpoints see it."""

    @property
    def used(self) -> int:
        """Bytes of frames that recovery would read now."""

    def switch(self, *, roomy: bool = True) -> int:
        """Begin a new file; the sequence number from which on recovery will need the journal once everything before it
        is in its segment and synced."""

    def stay(self) -> None:
        """What `switch` was for came to nothing."""

    def surplus(self) -> list[tuple[str, int]]:
        """Files that are never written again, and take more of the disk than their frames need: path, and size to cut
        them to. Each once."""

    def retire(self, before: int) -> list[str]:
        """Everything before frame `before` is superfluous; the paths of files to be removed."""

    def unprepared(self) -> JournalFile | None:
        """A file that should be prepared now, taken out of use for it."""

    def prepare(self, spare: JournalFile) -> None:
        """Write zeros where the file was never written. Blocks."""

    def use_prepared(self, spare: JournalFile) -> None:
        """It may be used."""

    def give_up(self, spare: JournalFile) -> str:
        """It could not be prepared; the path, to be removed."""

    def close(self) -> None: ...


class Journal:
    """Places frames in files. `write` runs in the journal's executor; everything else on the loop."""

    def __init__(self, disk: Disk, file_bytes: int, next_sequence: int) -> None:
        self._disk = disk
        self._file_bytes = file_bytes
        self._next_file = 0
        self._current: JournalFile | None = None
        self._full: list[JournalFile] = []
        self._spare: list[JournalFile] = []
        self._preparing = False
        # Looks that have found the same current file.
        self._looked_at: JournalFile | None = None
        self._looks = 0
        # Where the last frame was placed.
        self._last: JournalFile | None = None
        self.next_sequence = next_sequence
        # The last frame that was acknowledged: what the next one names as its previous.
        self.acknowledged = 0

    def place(self, payload: Sequence[Buffer], size: int, entries: int) -> PlacedFrame:
        """Choose where the next frame goes. Only one may be on its way at a time."""
        sequence = self.next_sequence
        self.next_sequence += 1
        file, position = self._room(FRAME.size + size, sequence)
        return PlacedFrame(self, file, position, sequence, self.acknowledged, payload, size, entries)

    def place_bytes(self, data: bytes, last: int) -> PlacedBytes:
        """The same for frames that are complete, up to the one with the sequence number `last`."""
        self.next_sequence = last + 1
        return PlacedBytes(self._disk, *self._room(len(data), last), data)

    def _room(self, total: int, last: int) -> tuple[JournalFile, int]:
        current = self._current
        if current is None or current.filled + total > current.size:
            if current is not None:
                self._full.append(current)
            current = self._take(total)
        position = current.filled
        current.last_sequence = max(current.last_sequence, last)
        current.filled += total
        current.written = max(current.written, current.filled)
        self._last = current
        return current, position

    def _take(self, total: int) -> JournalFile:
        fitting = [spare for spare in self._spare if spare.size >= total]
        if fitting:
            self._current = max(fitting, key=lambda spare: spare.written)
            self._spare.remove(self._current)
            self._current.filled = self._current.last_sequence = 0
        else:
            self._current = self._new(total)
        return self._current

    def _new(self, total: int) -> JournalFile:
        path = f"{FOLDER}/{self._next_file:08d}{SUFFIX}"
        self._next_file += 1
        return JournalFile(path, None, max(self._file_bytes, total))

    def unprepared(self) -> JournalFile | None:
        """A file that should be prepared now, taken out of use for it; None where there is no need. Ask often."""
        current = self._current
        self._looks = self._looks + 1 if current is self._looked_at else 0
        self._looked_at = current
        if current is None or self._looks < LOOKS or current.filled < current.size * TRAFFIC:
            return None
        if any(spare.written >= spare.size for spare in self._spare):
            return None
        self._preparing = True
        return self._spare.pop() if self._spare else self._new(0)

    def prepare(self, spare: JournalFile) -> None:
        """Write zeros where the file was never written. Blocks; raises what the disk raises."""
        if spare.file is None:
            create(self._disk, spare, spare.size)
            assert spare.file is not None
        while spare.written < spare.size:
            end = min(spare.written + len(ZEROS), spare.size)
            spare.file.write(spare.written, [memoryview(ZEROS)[: end - spare.written]])
            spare.file.write_back(spare.written, end)
            spare.written = end
        spare.file.sync()

    def use_prepared(self, spare: JournalFile) -> None:
        """It may be used. Where the current file is not written through, the next frame goes to this one already."""
        self._preparing = False
        self._spare.append(spare)
        current = self._current
        if current is not None and current.written < current.size:
            self._full.append(current)
            self._current = None

    def give_up(self, spare: JournalFile) -> str:
        """It could not be prepared and is not used; the path, to be removed."""
        self._preparing = False
        if spare.file is not None:
            spare.file.close()
        return spare.path

    def abandon(self) -> None:
        """The last flush failed: its file is never written again, since what the device made of it is unknown. One
        that could not be made is none; the one before it is written on, where there is room in it."""
        if self._last is not None:
            self._last.sound = False
        current, self._current = self._current, None
        if current is None:
            return
        if current.file is not None:
            self._full.append(current)
        else:
            self.stay()

    def switch(self, *, roomy: bool = True) -> int:
        """Begin a new file with the next frame; the sequence number from which on recovery will need the journal once
        everything before it is in its segment and synced. Where there is no room for a new file, one must be at hand,
        or else the current one, in which there is room, is written on."""
        if self._current is not None and (roomy or self._spare):
            self._full.append(self._current)
            self._current = None
        return self.next_sequence

    def stay(self) -> None:
        """What `switch` was for came to nothing: write the file on that it left, if there is none at hand. A disk that
        is full by now has no room for a new one."""
        if self._current is None and not self._spare and self._full and self._full[-1].sound:
            self._current = self._full.pop()

    def surplus(self) -> list[tuple[str, int]]:
        """None: a file that is full is used again."""
        return []

    def done(self) -> list[tuple[str, int]]:
        """Path and end of each file that is never written again, each once."""
        done = [each for each in self._full if each.roomy]
        for each in done:
            each.roomy, each.size = False, each.filled
        return [(each.path, each.filled) for each in done]

    def retire(self, before: int) -> list[str]:
        """Everything before frame `before` is superfluous: keep some files for reuse; the paths of those to be
        removed."""
        removed = []
        superfluous = [file for file in self._full if file.last_sequence < before]
        for done in sorted(superfluous, key=lambda file: -file.written):
            self._full.remove(done)
            room = len(self._spare) + self._preparing < SPARE_FILES
            if room and done.sound and done.file is not None and done.size == self._file_bytes:
                self._spare.append(done)
            else:
                if done.file is not None:
                    done.file.close()
                removed.append(done.path)
        return removed

    def remove(self, before: int, keep_bytes: int) -> list[str]:
        """Everything before frame `before` is superfluous: let go of the oldest files that hold nothing else, until
        those that are left hold at most `keep_bytes`; their paths, to be removed."""
        removed = []
        kept = 0
        # By their age, not by their sequences: an older file may end in higher ones, which were cut off.
        for each in sorted(self._full, key=lambda file: file.path, reverse=True):
            kept += each.filled
            if each.last_sequence < before and kept > keep_bytes:
                self._full.remove(each)
                if each.file is not None:
                    each.file.close()
                removed.append(each.path)
        return removed

    def inherit(self, found: Found) -> None:
        """Keep the files of the life before until a checkpoint makes them superfluous; go on behind their frames."""
        for each in found.files:
            # Never written again: what the device made of the last frame is unknown.
            self._full.append(JournalFile(each.path, None, each.end, each.last, each.end, sound=False))
            self._next_file = max(self._next_file, int(each.path.removeprefix(f"{FOLDER}/").removesuffix(SUFFIX)) + 1)
        if found.frames:
            self.acknowledged = found.frames[-1].sequence

    @property
    def used(self) -> int:
        """Bytes of frames that recovery would read now."""
        return sum(file.filled for file in [*self._full, *([self._current] if self._current else [])])

    def close(self) -> None:
        for each in [*self._full, *self._spare, *([self._current] if self._current else [])]:
            if each.file is not None:
                each.file.close()


class PlacedFrame:
    """A frame on its way to the disk."""

    __slots__ = ("_entries", "_file", "_journal", "_payload", "_position", "_previous", "_size", "sequence")

    def __init__(
        self,
        journal: Journal,
        file: JournalFile,
        position: int,
        sequence: int,
        previous: int,
        payload: Sequence[Buffer],
        size: int,
        entries: int,
    ) -> None:
        self._journal = journal
        self._file = file
        self._position = position
        self.sequence = sequence
        self._previous = previous
        self._payload = payload
        self._size = size
        self._entries = entries

    @property
    def has_file(self) -> bool:
        """Whether its file has been made."""
        return self._file.file is not None

    def submit(self, executor: SerialExecutor, done: SerialDone) -> None:
        """Have the executor write it. The loop puts a small one together, which takes it less than to be asked for the
        interpreter."""
        file = self._file.file
        if file is None or self._size > SMALL_BYTES:
            executor.submit(self.write, done)
        else:
            executor.write(file, self._position, b"".join(self._parts()), done)

    def write(self) -> None:
        """Write the frame and wait for the device. Blocks: for the journal's executor."""
        target = self._file
        if target.file is None:
            create(self._journal._disk, target, max(LEAST_BYTES, FRAME.size + self._size))
            assert target.file is not None
        target.file.write_durably(self._position, self._parts())

    def _parts(self) -> list[bytes]:
        body = b"".join(self._payload)
        return [frame_header(MAGIC, self.sequence, self._previous, self._entries, body), body]


class PlacedBytes:
    """Complete frames on their way to the disk."""

    __slots__ = ("_data", "_disk", "_file", "position")

    def __init__(self, disk: Disk, file: JournalFile, position: int, data: bytes) -> None:
        self._disk = disk
        self._file = file
        self.position = position
        self._data = data

    @property
    def path(self) -> str:
        return self._file.path

    def submit(self, executor: SerialExecutor, done: SerialDone) -> None:
        """Have the executor write them and wait for the device."""
        file = self._file.file
        if file is None:
            executor.submit(self._create_and_write, done)
        else:
            executor.write(file, self.position, self._data, done)

    def _create_and_write(self) -> None:
        create(self._disk, self._file, max(LEAST_BYTES, len(self._data)))
        assert self._file.file is not None
        self._file.file.write_durably(self.position, [self._data])


def cut(disk: Disk, path: str, size: int) -> None:
    """Give back what a file of the journal takes beyond its frames. Blocks."""
    with closing(disk.open(path, write=True)) as file:
        if file.size() > size:
            file.truncate(size)


def create(disk: Disk, made: JournalFile, least: int) -> None:
    """Make a file of the journal, with its room reserved, its beginning written and its name durable. Where there is no
    room for all of it, it becomes smaller, but not below `least`. Blocks."""
    file = disk.open(made.path, write=True, create=True)
    try:
        _allocate(file, made, least)
        head = int(made.size * HEAD)
        for at in range(0, head, len(ZEROS)):
            file.write(at, [memoryview(ZEROS)[: head - at]])
        file.sync()
        disk.sync_dir(FOLDER)
    except OSError:
        file.close()
        disk.remove(made.path)
        raise
    made.file = file
    made.written = max(made.written, head)


def _allocate(file: File, made: JournalFile, least: int) -> None:
    while True:
        try:
            file.allocate(made.size)
            return
        except OSError as error:
            smaller = int(made.size * SMALLER)
            if error.errno not in NO_SPACE or smaller < least:
                raise
            file.truncate(0)
            made.size = smaller


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file of the journal."""

    path: str
    end: int
    """Where its frames end."""
    last: int
    """The number of the last of them, 0 if there is none."""


@dataclass(frozen=True, slots=True)
class Found:
    """What recovery finds in the journal."""

    frames: list[Frame]
    """The acknowledged ones that can be read, in order."""
    lost: list[int]
    """Acknowledged ones that cannot, though later ones stand behind them; each is perhaps one of several."""
    files: list[FoundFile]


def read_frames(disk: Disk, since: int) -> Found:
    """The acknowledged frames numbered `since` or more, from all files of the journal. Blocks."""
    found: dict[int, Frame] = {}
    lost: set[int] = set()
    files = []
    for name in disk.listdir(FOLDER):
        if not name.endswith(SUFFIX):
            continue
        with closing(disk.open(f"{FOLDER}/{name}")) as file:
            reader = _Reader(file, since)
            for frame in reader.frames():
                if frame.sequence >= since:
                    found[frame.sequence] = frame
            if reader.lost:
                lost.add(reader.lost)
            files.append(FoundFile(file.path, reader.end, reader.last))
    chain: list[Frame] = []
    at = max(found, default=0)
    while at >= since and found:
        if at in found:
            chain.append(found[at])
            at = found[at].previous
        else:
            lost.add(at)
            at = max((sequence for sequence in found if sequence < at), default=0)
    chain.reverse()
    return Found(chain, sorted(lost), files)


class _Reader:
    """Reads one file. Only the frame that was written last can be torn: if one that can be read stands behind one that
    cannot, that is damage."""

    def __init__(self, file: File, since: int) -> None:
        self._file = file
        self._size = file.size()
        # What is not above this is of the file's former life, or superfluous.
        self._known = since - 1
        self.end = 0
        """Where the frames end that were found."""
        self.last = 0
        """The number of the last of them."""
        self.lost = 0
        """A frame that must have been there and cannot be found any more; 0 if there is none."""

    def frames(self) -> Iterator[Frame]:
        """The whole frames from the beginning; one between them whose contents are damaged is left out."""
        while (header := self._header_at(self.end)) is not None and header[1] > self.last:
            _, sequence, _, length = header
            frame = self._frame_at(self.end)
            end = self.end + FRAME.size + length
            if frame is not None:
                yield frame
            elif (behind := self._frame_at(end)) is None or behind.previous != sequence:
                break  # torn, or its header is damaged
            self.end, self.last = end, sequence
        self._known = max(self._known, self.last)
        self._look_behind(self.end + 1)

    def _look_behind(self, position: int) -> None:
        """Whether there is a later frame behind what cannot be read. It is not used: a client can write into a message
        what looks like one."""
        while position + FRAME.size <= self._size:
            piece = self._file.read(position, len(ZEROS))
            at = piece.find(MAGIC_BYTES)
            while 0 <= at <= len(piece) - FRAME.size:
                _, _, sequence, previous, _, _ = FRAME.unpack_from(piece, at)
                # No more frames can have stood in between than there is room for.
                later = self._known < previous < sequence <= self._known + self._size
                if later and self._frame_at(position + at) is not None:
                    self.lost = previous
                    return
                at = piece.find(MAGIC_BYTES, at + 1)
            # A header may lie across two pieces.
            position += max(len(piece) - FRAME.size + 1, 1)

    def _header_at(self, position: int) -> tuple[int, int, int, int] | None:
        """Checksum, sequence number, previous and length of a frame that may stand there."""
        return header_at(self._file, position, self._size, MAGIC)

    def _frame_at(self, position: int) -> Frame | None:
        return frame_at(self._file, position, self._size, MAGIC)


def give_back(disk: Disk, found: Found, since: int) -> None:
    """Let the disk have the room in which no frame stands from `since` on. Blocks."""
    for each in found.files:
        with closing(disk.open(each.path, write=True)) as file:
            # The room comes with this; a file that is removed may give it back late.
            file.truncate(each.end if each.last >= since else 0)


def write_again(disk: Disk, found: Found) -> None:
    """Make sure of frames that are relied on for longer: a sync of them may have failed, and the next one then means
    nothing. Needs no room. Blocks."""
    for each in found.files:
        with closing(disk.open(each.path, write=True)) as file:
            for at in range(0, each.end, len(ZEROS)):
                file.write(at, [file.read(at, min(len(ZEROS), each.end - at))])
            file.sync()
    disk.sync_dir(FOLDER)


def remove_files(disk: Disk) -> None:
    """Remove all files of the journal: a checkpoint has made them superfluous. Blocks."""
    for name in disk.listdir(FOLDER):
        disk.remove(f"{FOLDER}/{name}")
    disk.sync_dir(FOLDER)


def set_aside(disk: Disk, epoch: int) -> str:
    """Move all files of the journal to a folder of their own, for a look into the damage; its name. Blocks."""
    folder = f"{FOLDER}.kept-{epoch}"
    disk.mkdir(folder)
    for name in disk.listdir(FOLDER):
        disk.rename(f"{FOLDER}/{name}", f"{folder}/{name}")
    disk.sync_dir(folder)
    disk.sync_dir(FOLDER)
    disk.sync_dir("")
    return folder
