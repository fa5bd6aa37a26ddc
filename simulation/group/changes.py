"""What has happened to a group's record, counted from the history that etcd keeps.

Floors on these counts show that a campaign has met what it is there for.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from headrace.cluster.records import Group, parse_group
from simulation.etcd.cluster import EtcdCluster


def count_changes(etcd: EtcdCluster, key: str, name: str) -> Counter[str]:
    """How often each kind of change was made."""
    versions = [each.kv for each in etcd.store.events(0) if each.kv.key == key.encode() and not each.is_delete]
    counts = Counter(late for each in versions if each.mod_revision in etcd.late for late in ("late swap",))
    groups = [parse_group(each.value, name) for each in versions]
    for before, after in pairwise(groups):
        counts.update(_kinds(before, after))
    return counts


def _kinds(before: Group, after: Group) -> list[str]:
    """What one swap of the record has done."""
    kinds = []
    if after.epoch > before.epoch:
        kinds.append(_succession(before, after))
    elif after.leader is None and before.leader is not None:
        kinds.append("resignation")
    if after.epoch == before.epoch:
        kinds += ["joined ISR"] * len(set(after.isr) - set(before.isr))
        kinds += ["left ISR"] * len(set(before.isr) - set(after.isr))
    if after.min_isr != before.min_isr:
        kinds.append("min_isr emptied the ELR" if before.elr else "min_isr change")
    return kinds


def _succession(before: Group, after: Group) -> str:
    leader = after.leader
    assert leader is not None
    if before.epoch and leader.directory_id not in before.isr:
        return "ELR election" if leader.directory_id in before.elr else "unclean election"
    old = before.leader
    is_planned = old is not None and old.directory_id != leader.directory_id and old.directory_id in after.isr
    return "handover" if is_planned else "election"
