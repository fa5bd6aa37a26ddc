"""When a node stands for leader.

Safety does not depend on this: the swap in etcd gives each epoch to one node, and only members of the ISR (or of the
ELR, where none of those lives) have everything that is committed. What is decided here is when to disturb a leader that
may be well.

A node key dies with its lease, and leases die when etcd pauses although their holder lives: so a session on which the
leader was heard vetoes. But a leader that is heard and cannot work must not veto for ever: its heartbeats say how long
it has been without etcd, and for how long its device has been busy with one frame. Without etcd it works on, until a
commit waits for a change of the ISR that it cannot make.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.cluster.following import Link
from headrace.cluster.wire import Heartbeat


@dataclass(frozen=True, slots=True)
class Prospect:
    """What a node knows when it asks itself whether to stand."""

    me: str
    leader: str | None
    isr: frozenset[str]
    elr: frozenset[str]
    alive: frozenset[str]
    """Replicas whose node keys are in etcd."""
    link: Link | None
    """To the leader; None where there was none in this leadership."""
    silent_s: float
    """Since the leader was last heard on it."""
    heartbeat: Heartbeat | None
    stalled_s: float
    """For how long nothing has been committed, though frames wait for it."""
    lease_s: float
    unclean: bool
    """Whether a node may stand that may lack what was committed."""


def should_stand(prospect: Prospect) -> bool:
    """Whether this node should try to lead now."""
    return _is_eligible(prospect) and _leader_is_gone(prospect)


def _is_eligible(prospect: Prospect) -> bool:
    me, isr = prospect.me, prospect.isr
    if me in isr:
        return True
    if isr & prospect.alive - {prospect.leader}:
        return False
    return me in prospect.elr or (prospect.unclean and not (prospect.elr | isr) & prospect.alive - {prospect.leader})


def _leader_is_gone(prospect: Prospect) -> bool:
    leader = prospect.leader
    if leader is None or leader == prospect.me or prospect.link is Link.REFUSED:
        return True
    if prospect.link is Link.OPEN and prospect.silent_s < prospect.lease_s:
        return _is_stuck(prospect)
    return leader not in prospect.alive


def _is_stuck(prospect: Prospect) -> bool:
    """Whether a leader that is heard cannot do its work."""
    heartbeat, lease_s = prospect.heartbeat, prospect.lease_s
    if heartbeat is None:
        return False
    return heartbeat.flush_ms > lease_s * 1000 or (heartbeat.etcd_ms > lease_s * 1000 and prospect.stalled_s > lease_s)
