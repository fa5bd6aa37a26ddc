"""A bit flips in a file of a log that was stopped cleanly, where all is below the recovery point.

Nothing can bring the bit back. What is asked is that the damage stays where it is: the log starts, or reports why not;
the damaged partition serves what is whole, goes offline, or gives its reader a batch that fails its checksum; the
damaged segment is left as it is for a repair; and every other partition has everything. Indexes are
hints: with a bit of those wrong, nothing may be missing at all.
"""

from __future__ import annotations

from functools import partial

from headrace.errors import HeadraceError
from headrace.runtime import Runtime
from simulation.faults import Killed
from simulation.history import Violation, require
from simulation.log.life import LogLife
from simulation.log.model import LogModel, PartitionModel
from simulation.log.searcher import LogSearcher
from simulation.storage import FileNode
from simulation.world import World

NEVER = 1 << 40
SEARCH_INDEX = ".search"
HINTS = (".index", ".timeindex", SEARCH_INDEX)
# Searches of each partition beside a damaged index.
SEARCHES = 24


class BitFlip:
    """One flipped bit, and two lives after it: a clean start, and one after kill -9."""

    def __init__(self, world: World, known: LogModel) -> None:
        self._world = world
        self._known = known
        self._path = ""
        self._before = b""

    def run(self) -> str:
        """Flip, start, kill, start again; which file it was."""
        world = self._world
        flipped = world.machine.flip_bit(lambda path: not path.startswith("journal"), world.stream("damage"))
        if flipped is None:
            return "nothing to damage"
        self._path, _ = flipped
        self._before = self._contents()
        kept = self._path.endswith(".log") and not self._lies_before_the_start()
        for last in (False, True):
            self._known.end_life(world.run(partial(self._look, last)), False)
            if kept:
                require(self._contents() == self._before, f"the damaged {self._path} was changed")
        return f"damaged {self._path}"

    def _lies_before_the_start(self) -> bool:
        """Whether the segment was let go of, and the next start may remove it, damaged or not."""
        folder = self._path.rpartition("/")[0]
        segments = [path for path, _ in self._world.machine.storage.files() if path.startswith(f"{folder}/")]
        behind = [path for path in sorted(segments) if path.endswith(".log") and path > self._path]
        starts = [model.start for model in self._known.partitions() if str(model) == folder]
        return bool(behind and starts) and int(behind[0][len(folder) + 1 : -len(".log")]) <= starts[0]

    def _contents(self) -> bytes:
        node = self._world.machine.storage.find(self._path)
        return bytes(node.volatile) if isinstance(node, FileNode) else b""

    async def _look(self, last: bool, runtime: Runtime) -> None:
        # Nothing may go for another reason than the damage.
        life = LogLife(self._world, self._known, runtime, retention_check_ms=NEVER, compaction_check_ms=NEVER)
        try:
            await life.log.start()
        except HeadraceError as error:
            require("/" not in self._path, f"a flipped bit in {self._path} keeps the log from starting: {error}")
            return
        life.check_catalogue()
        folder = self._path.rpartition("/")[0]
        for model in self._known.partitions():
            if str(model) == folder and not self._path.endswith(HINTS):
                await self._look_at_damage(life, model)
            else:
                await life.verify(model)
        if self._path.endswith(SEARCH_INDEX):
            await LogSearcher(life).search_all(SEARCHES)
        if not last:
            self._world.machine.disk.die(Killed("damage"))
        await life.log.stop()

    async def _look_at_damage(self, life: LogLife, model: PartitionModel) -> None:
        partition = life.partition(model)
        assert partition is not None
        try:
            await partition.load()
            await life.reader.batches(model, partition, partition.start, look=False)
        except (HeadraceError, Violation) as noticed:
            self._world.note(f"noticed {noticed}")
