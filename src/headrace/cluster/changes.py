"""Every change of a group's record, as a function of the record alone.

The rules that keep committed messages stand here, away from clocks and networks, and are tested over all records that
can come about. Each function gives the next record, or raises ChangeRefused. A swap in etcd makes it the truth: between
reading and swapping nothing can change unseen.

The idea behind ISR and ELR (KIP-966): all members of both have every committed message. A commit waits for the whole
ISR, and there is none while the ISR has fewer than `min_isr` members, so what leaves such an ISR stays eligible. Once
the ISR is large enough again, commits go on without the ELR, and it is emptied in the same swap.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from headrace.cluster.errors import ChangeRefused
from headrace.cluster.records import Cluster, Group, Incarnation, Node
from headrace.cluster.versions import FEATURE_LEVEL


def new_group(replicas: Sequence[int], min_isr: int | None = None) -> Group:
    """A group that has never had a leader. `min_isr` is a majority unless it is given."""
    if not replicas:
        raise ChangeRefused("a group needs at least one node")
    if len(set(replicas)) < len(replicas):
        raise ChangeRefused(f"a node is named twice ({', '.join(map(str, replicas))})")
    least = len(replicas) // 2 + 1 if min_isr is None else min_isr
    _check_min_isr(least, len(replicas))
    return Group(
        version=1,
        epoch=0,
        leader=None,
        isr=(),
        elr=(),
        replicas=tuple(replicas),
        adding=(),
        removing=(),
        transfer_to=None,
        min_isr=least,
        unclean=False,
    )


# --- leading ---


def elect(group: Group, candidate: Incarnation, alive: Collection[str]) -> Group:
    """The candidate leads in a new epoch. `alive` are the directories whose nodes live, as far as the candidate sees; a
    wrong one costs time, never messages. The old leader and members that do not live leave the ISR."""
    _check_replica(group, candidate.node)
    if (leader := group.leader) is not None:
        if leader.directory_id == candidate.directory_id and leader.starts > candidate.starts:
            raise ChangeRefused(f"node {candidate.node} has been started again since")
        if leader.directory_id != candidate.directory_id and leader.directory_id in alive:
            raise ChangeRefused(f"node {leader.node} leads, and it is alive")
    if group.epoch == 0:
        if candidate.node != group.replicas[0]:
            raise ChangeRefused(f"node {group.replicas[0]} begins the group: it comes first in the order of preference")
    elif candidate.directory_id in group.elr:
        if living := [each for each in group.isr if each in alive]:
            raise ChangeRefused(f"a member of the ISR is alive ({living[0]}), and goes before the ELR")
    elif candidate.directory_id not in group.isr:
        raise ChangeRefused(
            f"node {candidate.node} may lack committed messages: its directory {candidate.directory_id} is neither in "
            "the ISR nor in the ELR"
        )
    gone = {candidate.directory_id} | ({leader.directory_id} if leader is not None else set())
    # Where the candidate is of the ELR, or the first leader of all, no other is alive and in sync.
    others = [each for each in group.isr if each in alive and each not in gone]
    isr = [candidate.directory_id, *others]
    return _next(group, epoch=group.epoch + 1, leader=candidate, transfer_to=None, **_isr(group, isr))


def elect_unclean(group: Group, candidate: Incarnation, alive: Collection[str]) -> Group:
    """The candidate leads although it may lack committed messages, which are then lost: only where the group allows it,
    and no other is left."""
    _check_replica(group, candidate.node)
    if not group.unclean:
        raise ChangeRefused(
            "an unclean election may lose committed messages, and unclean.leader.election.enable is false"
        )
    if candidate.node in group.adding:
        raise ChangeRefused(f"node {candidate.node} is being added, and has a part of the messages at most")
    if living := [each for each in (*group.isr, *group.elr) if each in alive]:
        raise ChangeRefused(f"a replica that has every committed message is alive ({living[0]})")
    return _next(
        group, epoch=group.epoch + 1, leader=candidate, transfer_to=None, isr=(candidate.directory_id,), elr=()
    )


def hand_over(group: Group, leader: Incarnation, to: Incarnation) -> Group:
    """The leader names the next one, in a new epoch, and stays in the ISR."""
    _check_leader(group, leader)
    _check_replica(group, to.node)
    if to.directory_id == leader.directory_id:
        raise ChangeRefused(f"node {to.node} leads already")
    if to.directory_id not in group.isr:
        raise ChangeRefused(f"node {to.node} is not in sync")
    return _next(group, epoch=group.epoch + 1, leader=to, transfer_to=None)


def resign(group: Group, leader: Incarnation) -> Group:
    """The leader gives up. It stays in the ISR: the others may be gone, and it has everything. One whose disk fails
    leaves once another leads."""
    _check_leader(group, leader)
    return _next(group, leader=None)


# --- the ISR ---


def add_to_isr(group: Group, leader: Incarnation, member: Incarnation) -> Group:
    """A follower has caught up. For the leader it counts before this is sent."""
    _check_leader(group, leader)
    _check_replica(group, member.node)
    if member.node in group.removing:
        raise ChangeRefused(f"node {member.node} is being removed")
    if member.directory_id in group.isr:
        raise ChangeRefused(f"node {member.node} is in the ISR already")
    return _next(group, adding=_without(group.adding, member.node), **_isr(group, [*group.isr, member.directory_id]))


def remove_from_isr(group: Group, leader: Incarnation, directories: Collection[str]) -> Group:
    """Followers are gone or lag. For the leader they stop counting once this is confirmed."""
    _check_leader(group, leader)
    if leader.directory_id in directories:
        raise ChangeRefused("the leader cannot leave the ISR while it leads")
    if not directories or not set(directories) <= set(group.isr):
        raise ChangeRefused("only members of the ISR can leave it")
    return _next(group, **_isr(group, [each for each in group.isr if each not in directories]))


def leave_isr(group: Group, member: Incarnation) -> Group:
    """A follower is about to stop, or its disk fails: no commit has to wait for it. The leader counts it until it has
    seen this."""
    if group.leader is None:
        raise ChangeRefused(f"no node leads, and node {member.node} may be the last that has everything")
    if group.leader.directory_id == member.directory_id:
        raise ChangeRefused("the leader cannot leave the ISR while it leads")
    if member.directory_id not in group.isr:
        raise ChangeRefused(f"node {member.node} is not in the ISR")
    others = _without(group.isr, member.directory_id)
    if not others:
        raise ChangeRefused(f"node {member.node} is the only member of the ISR")
    return _next(group, **_isr(group, others))


def forget_directory(group: Group, directory_id: str) -> Group:
    """A node has another directory now, or an older state of it: what it was in sync with is gone."""
    isr, elr = _without(group.isr, directory_id), _without(group.elr, directory_id)
    if (isr, elr) == (group.isr, group.elr):
        raise ChangeRefused(f"the directory {directory_id} is neither in the ISR nor in the ELR")
    if not isr and not elr:
        raise ChangeRefused(
            f"the directory {directory_id} is the only one that has every committed message. Give the node that "
            "directory back, or set unclean.leader.election.enable to true and accept the loss of messages."
        )
    led = group.leader is not None and group.leader.directory_id == directory_id
    return _next(group, isr=isr, elr=elr, leader=None if led else group.leader)


# --- replicas ---


def add_replica(group: Group, node: int) -> Group:
    """The node begins to copy; once it has caught up it is in the ISR."""
    if node in group.removing:
        raise ChangeRefused(f"node {node} is being removed. Add it again once that is done.")
    if node in group.replicas:
        raise ChangeRefused(f"node {node} is a replica already")
    return _next(group, replicas=(*group.replicas, node), adding=(*group.adding, node))


def remove_replica(group: Group, node: int) -> Group:
    """The leader will take the node out of the ISR, and then out of the group (`drop_replica`). One that is still being
    added goes at once."""
    _check_replica(group, node)
    if node in group.removing:
        raise ChangeRefused(f"node {node} is being removed already")
    if group.leader is not None and group.leader.node == node:
        raise ChangeRefused(f"node {node} leads. Transfer the leadership to another node first.")
    transfer_to = None if group.transfer_to == node else group.transfer_to
    if node in group.adding:
        return _next(
            group,
            replicas=_without(group.replicas, node),
            adding=_without(group.adding, node),
            transfer_to=transfer_to,
        )
    left = [each for each in group.replicas if each not in (*group.removing, *group.adding, node)]
    if len(left) < group.min_isr:
        raise ChangeRefused(
            f"without node {node} the group has {len(left)} replicas, and min.insync.replicas is {group.min_isr}. Add "
            "another node first, or lower the setting."
        )
    return _next(group, removing=(*group.removing, node), transfer_to=transfer_to)


def drop_replica(group: Group, leader: Incarnation, node: int, directory_id: str | None) -> Group:
    """The leader ends a removal. `directory_id` is the node's, None if it never had one."""
    _check_leader(group, leader)
    if node not in group.removing:
        raise ChangeRefused(f"node {node} is not being removed")
    if leader.node == node:
        raise ChangeRefused(f"node {node} leads. Transfer the leadership to another node first.")
    isr = _without(group.isr, directory_id)
    if isr != group.isr and len(isr) < group.min_isr:
        raise ChangeRefused(
            f"without node {node} the ISR has {len(isr)} members, and min.insync.replicas is {group.min_isr}: the node "
            "stays until another is in sync"
        )
    return _next(
        group,
        isr=isr,
        elr=_without(group.elr, directory_id),
        replicas=_without(group.replicas, node),
        removing=_without(group.removing, node),
    )


def request_transfer(group: Group, node: int, directory_id: str | None) -> Group:
    """Ask the leader to hand over to a node. `directory_id` is the node's, None if it has none."""
    _check_replica(group, node)
    if group.leader is None:
        raise ChangeRefused("the group has no leader that could hand over")
    if group.leader.node == node:
        raise ChangeRefused(f"node {node} leads already")
    if node in group.removing:
        raise ChangeRefused(f"node {node} is being removed")
    if directory_id not in group.isr:
        raise ChangeRefused(f"node {node} is not in sync. Wait until it is in the ISR.")
    return _next(group, transfer_to=node)


def end_transfer(group: Group, leader: Incarnation) -> Group:
    """The leader does not hand over after all."""
    _check_leader(group, leader)
    if group.transfer_to is None:
        raise ChangeRefused("the leader is not asked to hand over")
    return _next(group, transfer_to=None)


# --- settings ---


def configure(
    group: Group, *, min_isr: int | None = None, unclean: bool | None = None, lag_ms: int | None = None
) -> Group:
    """Change settings, those that are given. The ELR was made under the old `min_isr`: another one empties it in the
    same swap."""
    after = _next(
        group,
        unclean=group.unclean if unclean is None else unclean,
        lag_ms=group.lag_ms if lag_ms is None else lag_ms,
    )
    if min_isr is None or min_isr == group.min_isr:
        return after
    _check_min_isr(min_isr, len(group.replicas) - len(group.removing) - len(group.adding))
    if group.elr and not group.isr:
        raise ChangeRefused("no replica is in the ISR. Wait until one of the ELR leads.")
    return replace(after, min_isr=min_isr, elr=())


def raise_feature_level(cluster: Cluster, level: int, running: Mapping[int, Node | None]) -> Cluster:
    """Let records and frames have what came with a level: once every node knows it, for it never falls again. `running`
    has every node of the cluster, None for one that does not run."""
    if level < cluster.feature_level:
        raise ChangeRefused(f"feature.level is {cluster.feature_level}, and never falls (got {level})")
    for number, node in running.items():
        if node is None:
            raise ChangeRefused(
                f"node {number} does not run, so that its version is not known. Start it, or remove it."
            )
        if node.feature_level < level:
            raise ChangeRefused(
                f"node {number} knows feature.level {node.feature_level} at most (got {level}). Upgrade it first."
            )
    if level > FEATURE_LEVEL:
        raise ChangeRefused(f"this command knows feature.level {FEATURE_LEVEL} at most (got {level}). Use a newer one.")
    return replace(cluster, feature_level=level)


def touch(group: Group) -> Group:
    """Change nothing but the version: a swap of this ends what earlier swaps may still do."""
    return _next(group)


def _next(group: Group, **changes: Any) -> Group:
    return replace(group, version=group.version + 1, **changes)


def _isr(group: Group, isr: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """A new ISR, and the ELR that goes with it."""
    kept = tuple(isr)
    if len(kept) >= group.min_isr:
        return {"isr": kept, "elr": ()}
    return {"isr": kept, "elr": tuple(each for each in (*group.isr, *group.elr) if each not in kept)}


def _without(values: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
    return tuple(each for each in values if each != value)


def _check_replica(group: Group, node: int) -> None:
    if node not in group.replicas:
        replicas = ", ".join(map(str, group.replicas))
        raise ChangeRefused(f"node {node} is not a replica of the group (replicas: {replicas})")


def _check_leader(group: Group, leader: Incarnation) -> None:
    if group.leader != leader:
        leads = "no node" if group.leader is None else f"node {group.leader.node}"
        raise ChangeRefused(f"node {leader.node} does not lead any more: {leads} does, in epoch {group.epoch}")


def _check_min_isr(min_isr: int, replicas: int) -> None:
    if not 1 <= min_isr <= replicas:
        raise ChangeRefused(
            f"min.insync.replicas must be 1 to {replicas}, as many as there are replicas (got {min_isr})"
        )
