"""A catalogue that changes under a checkpoint: the frames that are replayed begin before what the checkpoint saw."""

from __future__ import annotations

from headrace.config import Config
from headrace.log.interface import TopicSettings
from headrace.log.native import NativeLog
from headrace.runtime import Runtime
from simulation.faults import PowerCut
from simulation.world import Ending, World


def test_a_topic_made_again_during_a_checkpoint_outlives_the_replay_of_the_first():
    world = World(1)
    made: list[object] = []

    async def make_and_remake(runtime: Runtime) -> None:
        log = NativeLog(runtime, Config())
        await log.start()
        save = log.upkeep.save_checkpoint

        async def save_late(journal_from: int) -> None:
            await log.create("t", 1, {}, TopicSettings())
            await log.delete("t")
            made.append((await log.create("t", 1, {}, TopicSettings())).id)
            await save(journal_from)

        log.upkeep.save_checkpoint = save_late
        await log.create("other", 1, {}, TopicSettings())
        await log.upkeep.checkpoint()
        assert made, "the checkpoint was not written"
        world.machine.disk.die(PowerCut("test"))

    async def look(runtime: Runtime) -> None:
        log = NativeLog(runtime, Config())
        await log.start()
        assert [log.topics["t"].id] == made
        await log.stop()

    assert world.run(make_and_remake) is Ending.POWER_CUT
    assert world.run(look) is Ending.DONE
