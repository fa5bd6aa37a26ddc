"""When a node stands, and when it lets a leader be."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.cluster.election import Prospect, should_stand
from headrace.cluster.following import Link
from headrace.cluster.wire import Heartbeat

LEASE = 2.0
# A follower in sync, whose leader is well.
WELL = Prospect(
    me="b",
    leader="a",
    isr=frozenset("abc"),
    elr=frozenset(),
    alive=frozenset("abc"),
    link=Link.OPEN,
    silent_s=0.1,
    heartbeat=Heartbeat(5, 100, 0, 0),
    stalled_s=0.1,
    lease_s=LEASE,
    unclean=False,
)
# The leader's machine is gone.
GONE = replace(WELL, alive=frozenset("bc"), link=Link.CLOSED, silent_s=3.0)


@pytest.mark.parametrize(
    ("prospect", "stands"),
    [
        (WELL, False),
        (GONE, True),
        (replace(WELL, leader=None, link=None), True),
        # Its process is gone, whatever the lease says.
        (replace(WELL, link=Link.REFUSED), True),
        # The lease is gone, and the leader is heard: etcd paused.
        (replace(WELL, alive=frozenset("bc")), False),
        (replace(WELL, alive=frozenset("bc"), silent_s=2.5), True),
        # The session is gone, and the lease lives: the link is cut, not the leader.
        (replace(WELL, link=Link.CLOSED, silent_s=9.0), False),
        (replace(WELL, link=Link.CONNECTING, silent_s=9.0), False),
        # It is heard, and cannot work.
        (replace(WELL, heartbeat=Heartbeat(5, 2_100, 0, 0), stalled_s=2.1), True),
        # It is without etcd, and has no need of it.
        (replace(WELL, heartbeat=Heartbeat(5, 2_100, 0, 0)), False),
        (replace(WELL, heartbeat=Heartbeat(5, 0, 2_100, 0)), True),
        (replace(WELL, heartbeat=None), False),
        # This node is what etcd names, and has not been it since its start.
        (replace(WELL, me="a", link=None), True),
    ],
)
def test_a_member_of_the_isr(prospect: Prospect, stands: bool) -> None:
    assert should_stand(prospect) is stands


@pytest.mark.parametrize(
    ("change", "stands"),
    [
        ({"isr": frozenset("ac")}, False),
        # No other in-sync replica lives.
        ({"isr": frozenset("ac"), "alive": frozenset("b")}, False),
        ({"isr": frozenset("a"), "elr": frozenset("b")}, True),
        ({"isr": frozenset("ac"), "elr": frozenset("b")}, False),
        ({"isr": frozenset("ac"), "elr": frozenset("b"), "alive": frozenset("b")}, True),
        ({"isr": frozenset("a"), "unclean": True}, True),
        ({"isr": frozenset("ac"), "unclean": True}, False),
        ({"isr": frozenset("a"), "elr": frozenset("c"), "unclean": True}, False),
        ({"isr": frozenset("a"), "elr": frozenset("c"), "unclean": True, "alive": frozenset("b")}, True),
    ],
)
def test_a_node_that_is_not_in_sync(change: dict[str, object], stands: bool) -> None:
    assert should_stand(replace(GONE, **change)) is stands  # type: ignore[arg-type]
