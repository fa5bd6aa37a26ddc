"""A group's records anew, from what its nodes know: for an etcd that was lost, or put back to an older state.

All replicas are heard, so nobody knows of a later record. Of them the one whose journal ends at the greatest (epoch,
sequence) has every committed message: a commit is on the device of each member of the ISR, and only a member is
elected. While a node leads in the last epoch, it is that one, for it goes on committing. It alone is in the ISR of the
new record; the others join it as they always do.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from headrace.cluster.errors import ChangeRefused
from headrace.cluster.etcd import Entry, Etcd, View
from headrace.cluster.records import Cluster, Group, Keys, Member, parse_cluster, parse_group
from headrace.cluster.swaps import swap
from headrace.cluster.wire import Report


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """The records."""

    cluster: Cluster
    group: Group
    members: Mapping[int, Member]


def rebuild(
    reports: Sequence[Report], cluster: Cluster | None, group: Group | None, without: Collection[int] = ()
) -> Rebuilt:
    """The records that follow from the reports. `cluster` and `group` are what etcd has; nodes in `without` are gone
    for good, with what they alone knew. Raises ChangeRefused."""
    first = reports[0]
    for each in reports:
        if (each.cluster, each.group) != (first.cluster, first.group):
            raise ChangeRefused(
                f"node {each.node} belongs to group {each.group!r} of cluster {each.cluster}, and node {first.node} to "
                f"group {first.group!r} of cluster {first.cluster}"
            )
    if cluster is not None and cluster.id != first.cluster:
        raise ChangeRefused(f"etcd has cluster {cluster.id}, and the nodes belong to {first.cluster}")
    newest = max((each.seen for each in reports), key=lambda seen: (seen.version, seen.epoch))
    if group is not None and (group.version, group.epoch) >= (newest.version, newest.epoch):
        raise ChangeRefused(
            f"etcd's record of group {first.group!r} has version {group.version} and epoch {group.epoch}, and no node "
            "has seen a later one: nothing is lost"
        )
    heard = _numbers(reports, newest, without)
    epochs = [each for report in reports for each in (report.epoch, report.end.epoch, report.seen.epoch)]
    made = replace(newest, version=newest.version + 1, transfer_to=None)
    if newest.epoch > 0:
        best = _most_complete(reports, max(epochs))
        made = replace(made, epoch=max(epochs) + 1, leader=None, isr=(best.directory,), elr=())
    level = max(each.feature_level for each in reports)
    return Rebuilt(
        Cluster(first.cluster, max(level, cluster.feature_level if cluster is not None else 0)),
        made,
        {number: Member(each.directory, each.starts) for number, each in heard.items()},
    )


def _numbers(reports: Sequence[Report], newest: Group, without: Collection[int]) -> dict[int, Report]:
    """The reports by node. Raises ChangeRefused where one is missing."""
    heard: dict[int, Report] = {}
    for each in reports:
        if each.node in heard:
            raise ChangeRefused(f"node {each.node} was asked twice, or runs twice. Name each node once.")
        heard[each.node] = each
    if both := sorted(heard.keys() & set(without)):
        raise ChangeRefused(f"node {both[0]} answers, so that it cannot be left out")
    if missing := sorted(set(newest.replicas) - heard.keys() - set(without)):
        raise ChangeRefused(
            f"node {missing[0]} was not asked, and may have messages that the others lack. Name its peer address too, "
            f"or --without {missing[0]} if it is gone for good, and accept the loss of what it alone has."
        )
    return heard


def _most_complete(reports: Sequence[Report], epoch: int) -> Report:
    whole = [each for each in reports if not each.is_copying and each.node in each.seen.replicas]
    if not whole:
        raise ChangeRefused("no node has a whole copy of the messages")
    leading = [each for each in whole if each.leads and each.epoch == epoch]
    return leading[0] if leading else max(whole, key=lambda each: (each.end, each.directory in each.seen.isr))


async def write(etcd: Etcd, keys: Keys, view: View, group: str, rebuilt: Rebuilt) -> None:
    """Put the records in etcd, that of the group last: nodes act on it. Raises EtcdError, ChangeRefused."""
    records = [(keys.member(number), member.encode()) for number, member in rebuilt.members.items()]
    records += [(keys.cluster, rebuilt.cluster.encode()), (keys.group(group), rebuilt.group.encode())]
    for key, value in records:
        found = view.entries.get(key)
        if await swap(etcd, key, 0 if found is None else found.revision, value) is not None:
            raise ChangeRefused(f"{key} was changed in etcd meanwhile. Look at it, and try again.")


def read(view: View, keys: Keys, group: str) -> tuple[Cluster | None, Group | None]:
    """What etcd has still. Raises RecordInvalid."""

    def entry(key: str) -> Entry | None:
        return view.entries.get(key)

    cluster, found = entry(keys.cluster), entry(keys.group(group))
    return (
        None if cluster is None else parse_cluster(cluster.value, cluster.key),
        None if found is None else parse_group(found.value, found.key),
    )
