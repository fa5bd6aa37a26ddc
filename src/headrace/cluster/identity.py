"""Who a data directory is: a file in it, and the node's record in etcd, which must agree.

`(directory_id, starts)` is the incarnation of a node. The count of starts is synced in the directory first and swapped
into etcd behind it, so a directory is never behind etcd by a crash: one that is has been restored from a backup, and
what it acknowledged since is gone. Such a directory, and one that is new, is given a new id. No ISR and no ELR names
that, so it joins as new. (A copy that was taken while the node ran, and put back before it was started again, has the
count that etcd has, and is not recognised: restore a node by an empty directory.)
"""

from __future__ import annotations

import json
import threading
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any
from uuid import UUID

from headrace.cluster.changes import forget_directory
from headrace.cluster.errors import ChangeRefused, EtcdWentBack, StartRefused
from headrace.cluster.etcd import Etcd
from headrace.cluster.records import Cluster, Group, Keys, Member, parse_group, parse_member, parse_node
from headrace.cluster.swaps import change_group, read_cluster, read_group, swap
from headrace.cluster.versions import FEATURE_LEVEL
from headrace.errors import DataDirectoryInvalid
from headrace.log import checked
from headrace.runtime import Runtime
from headrace.runtime.disk import Disk

PATH = "cluster-identity"
FORMAT = 1
# The log's own file, without which there are no messages.
CHECKPOINT = "checkpoint"


@dataclass(frozen=True, slots=True)
class Identity:
    """What a data directory knows about itself and its group."""

    cluster_id: str
    group: str
    node: int
    directory_id: str
    starts: int
    is_copying: bool
    """What the directory holds is not yet a whole copy: the node may not lead."""
    seen: Group
    """The newest record of the group that this node has acted on: what a lost etcd is rebuilt from."""
    feature_level: int = 1
    """Of the cluster, as this node last knew it."""


def load(disk: Disk) -> Identity | None:
    """The identity, or None in a directory that never belonged to a cluster. Blocks. Raises DataDirectoryInvalid."""
    try:
        body = checked.load(disk, PATH)
    except checked.ChecksumWrong:
        raise DataDirectoryInvalid(
            f"the file {PATH!r} does not fit its checksum. Give the node an empty directory: it copies what it needs."
        ) from None
    if body is None:
        return None
    values = json.loads(body)
    if (found := values.pop("format", None)) != FORMAT:
        raise DataDirectoryInvalid(
            f"the file {PATH!r} has format {found}, this Headrace reads {FORMAT}. Use a newer Headrace."
        )
    return Identity(**{**values, "seen": parse_group(json.dumps(values["seen"]).encode(), PATH)})


def save(disk: Disk, identity: Identity) -> None:
    """Replace the identity durably. Blocks."""
    body = json.dumps({"format": FORMAT, **asdict(identity)}).encode()
    checked.save(disk, PATH, body)


# Two changes at once must not undo each other.
_CHANGING = threading.Lock()


def change(disk: Disk, **changes: Any) -> Identity:
    """Change fields of the identity that is there, durably; the new one. Blocks."""
    with _CHANGING:
        found = load(disk)
        if found is None:
            raise DataDirectoryInvalid(f"the file {PATH!r} is missing. Give the node an empty directory.")
        changed = replace(found, **changes)
        save(disk, changed)
        return changed


def check_not_older(group: Group, identity: Identity) -> None:
    """Refuse a record that is older than one that was seen. Raises EtcdWentBack."""
    seen = identity.seen
    if group.version < seen.version or group.epoch < seen.epoch:
        raise EtcdWentBack(
            f"etcd went back in time: the record of group {identity.group!r} has version {group.version} and epoch "
            f"{group.epoch}, and this node has seen {seen.version} and {seen.epoch}. Was etcd restored from a backup? "
            "Restore the newest state of it, or rebuild it: headrace cluster init --from-nodes."
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """How a node starts."""

    identity: Identity
    """To be saved, and then swapped into etcd."""
    forgotten: tuple[str, ...]
    """Directories whose places in ISR and ELR are void."""


def plan_start(
    found: Identity | None,
    has_messages: bool,
    cluster: Cluster,
    member: Member | None,
    group: Group,
    joined: Identity,
) -> Plan:
    """What a start does with a directory. `found` is its identity, `member` etcd's record of the node, and `joined` the
    identity that it gets if it joins as new. Raises StartRefused, EtcdWentBack."""
    if joined.node not in group.replicas:
        raise StartRefused(
            f"node {joined.node} is not a replica of group {joined.group!r} (replicas: "
            f"{', '.join(map(str, group.replicas))}). Run headrace cluster add-node {joined.node}."
        )
    if found is None and has_messages:
        raise StartRefused(
            "the data directory has messages of a broker that ran without a cluster. Give the node an empty directory."
        )
    if found is not None:
        _check_own(found, cluster, joined)
        check_not_older(group, found)
        if member is not None and found.directory_id == member.directory_id and found.starts >= member.starts:
            return Plan(replace(found, starts=found.starts + 1), ())
    held = {each.directory_id for each in (found, member) if each is not None}
    forgotten = tuple(sorted(held & {*group.isr, *group.elr}))
    if set(forgotten) == {*group.isr, *group.elr} and forgotten and not group.unclean:
        raise StartRefused(
            f"the data directory is new, or an older state of it was restored, and the one that node {joined.node} had "
            f"({forgotten[0]}) is the only one that has every committed message. Give the node that directory back, or "
            "set unclean.leader.election.enable to true and accept the loss of messages."
        )
    return Plan(joined, forgotten)


def _check_own(found: Identity, cluster: Cluster, joined: Identity) -> None:
    for what, has, wanted in (
        ("cluster", found.cluster_id, cluster.id),
        ("group", found.group, joined.group),
        ("node", found.node, joined.node),
    ):
        if has != wanted:
            raise StartRefused(
                f"the data directory belongs to {what} {has}, and this is {what} {wanted}. Give the node its own "
                "directory, or an empty one."
            )


async def start(
    runtime: Runtime, etcd: Etcd, keys: Keys, group_name: str, node: int, level: int = FEATURE_LEVEL
) -> Identity:
    """The identity of this start, in the directory and in etcd. `level` is the highest feature level that the node
    knows. Raises EtcdError, EtcdWentBack, StartRefused, NotInitialized, RecordInvalid, DataDirectoryInvalid."""
    offload, disk = runtime.offload, runtime.disk
    found = await offload.run(load, disk)
    view = await etcd.read_prefix(keys.prefix)
    cluster = read_cluster(view.entries.get(keys.cluster), keys.cluster, level)
    group = read_group(view.entries.get(keys.group(group_name)), keys.group(group_name))
    running, registered = view.entries.get(keys.node(node)), view.entries.get(keys.member(node))
    if running is not None:
        other = parse_node(running.value, running.key)
        # A key of this directory is what a process left behind that is gone: the directory is locked.
        if found is None or other.directory_id != found.directory_id:
            raise StartRefused(
                f"node {node} runs already, at {other.addresses.get('peer', 'an unknown address')}. Give this one "
                "another --node-id, or wait for the other's lease to expire."
            )
    directory_id = str(UUID(bytes=runtime.random.bytes(16), version=4))
    plan = plan_start(
        found,
        await offload.run(disk.exists, CHECKPOINT),
        cluster,
        None if registered is None else parse_member(registered.value, registered.key),
        group,
        # A first leader has nothing to copy.
        Identity(cluster.id, group_name, node, directory_id, 1, group.epoch > 0, group),
    )
    identity = replace(plan.identity, seen=group, feature_level=cluster.feature_level)
    await offload.run(save, disk, identity)
    for forgotten in plan.forgotten:
        try:
            await change_group(etcd, keys.group(group_name), partial(forget_directory, directory_id=forgotten))
        except ChangeRefused:
            pass  # it left meanwhile, or it is the last one, and an unclean election is allowed
    member = Member(identity.directory_id, identity.starts)
    revision = 0 if registered is None else registered.revision
    if await swap(etcd, keys.member(node), revision, member.encode()) is not None:
        raise StartRefused(f"node {node} is started elsewhere at the same time. Give one of the two another --node-id.")
    return identity
