"""Settings of a single group: how long members may be silent, how often they are heard, how long changes gather."""

from __future__ import annotations

from tests.broker.groups.consumer.stage import Client, ConsumerStage

from headrace.broker.groups.consumer.settings import GroupSettings


def test_a_change_counts_from_the_next_heartbeat_on() -> None:
    stage = ConsumerStage(t=2)
    client = Client(stage, "a")
    assert client.join().heartbeat_ms == 5_000
    stage.settings = GroupSettings(session_ms=10_000, heartbeat_ms=300)
    stage.loop.advance(20)
    assert client.beat().heartbeat_ms == 300
    stage.loop.advance(9)
    assert set(stage.group.roster.members) == {"a"}
    stage.loop.advance(1)
    assert stage.group.roster.members == {}


def test_changes_are_gathered_for_as_long_as_is_set() -> None:
    stage = ConsumerStage(t=3)
    stage.settings = GroupSettings(session_ms=45_000, heartbeat_ms=5_000, assignment_ms=2_000)
    first, second, third = (Client(stage, name) for name in "abc")
    first.join()
    assert stage.group.assignment_epoch == 1
    stage.loop.advance(1)
    second.join()
    third.join()
    assert (stage.group.epoch, stage.group.assignment_epoch) == (2, 1)
    stage.loop.advance(0.99)
    first.beat()
    assert stage.group.assignment_epoch == 1
    stage.loop.advance(0.02)
    first.beat()
    assert (stage.group.epoch, stage.group.assignment_epoch) == (2, 2)
