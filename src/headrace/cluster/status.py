"""What etcd knows of a cluster, and what is wrong with it, in words."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from headrace.addresses import parse_address
from headrace.cluster.asking import ask
from headrace.cluster.errors import NodeUnheard
from headrace.cluster.etcd import Etcd, View
from headrace.cluster.peer_tls import PeerTls
from headrace.cluster.records import Group, Keys, Member, Node, parse_group, parse_member, parse_node
from headrace.cluster.swaps import read_cluster, read_group


async def read_status(etcd: Etcd, keys: Keys, group: str, tls: PeerTls | None) -> dict[str, Any]:
    """The state of one group, its nodes and etcd, for JSON. `tls`: for asking the leader how far the others are. Raises
    EtcdError, NotInitialized, RecordInvalid."""
    view = await etcd.read_prefix(keys.prefix)
    members = [{"etcd": address, "version": version} for address, version in (await etcd.versions()).items()]
    found = describe(view, keys, group)
    await _ask_leader(found, tls)
    return {**found, "etcd": members}


async def _ask_leader(found: dict[str, Any], tls: PeerTls | None) -> None:
    """Add how far followers are, which their leader alone knows."""
    leading = next((each for each in found["nodes"] if each["role"] == "leader" and each["address"]), None)
    address = None if leading is None else parse_address(leading["address"])
    if address is None:
        return
    try:
        report = await ask(address, tls)
    except NodeUnheard as error:
        found["problems"].append(f"How far followers are is not known: {error}.")
        return
    followers = {each.node: each for each in report.followers}
    for row in found["nodes"]:
        if (follower := followers.get(row["node"])) is not None:
            row["lag_bytes"], row["lag_seconds"] = follower.lag_bytes, follower.lag_ms / 1000
            if follower.applied is not None:
                row["unapplied_frames"] = max(report.committed - follower.applied, 0)


def describe(view: View, keys: Keys, name: str) -> dict[str, Any]:
    """The same of what was read."""
    cluster = read_cluster(view.entries.get(keys.cluster), keys.cluster)
    group = read_group(view.entries.get(keys.group(name)), keys.group(name))
    running = running_nodes(view, keys)
    members = _members(view, keys, group)
    rows = [_row(node, group, members.get(node), running.get(node)) for node in group.replicas]
    return {
        "cluster": {"name": keys.name, **asdict(cluster)},
        "group": {"name": name, **asdict(group)},
        "nodes": rows,
        "problems": problems(group, rows),
    }


def running_nodes(view: View, keys: Keys) -> dict[int, Node | None]:
    """All nodes of all groups; None for one that does not run. Raises RecordInvalid."""
    groups = [parse_group(entry.value, key) for key, entry in view.entries.items() if key.startswith(keys.group(""))]
    found = {}
    for node in sorted({node for group in groups for node in group.replicas}):
        entry = view.entries.get(keys.node(node))
        found[node] = None if entry is None else parse_node(entry.value, entry.key)
    return found


def _members(view: View, keys: Keys, group: Group) -> dict[int, Member]:
    entries = {node: view.entries.get(keys.member(node)) for node in group.replicas}
    return {node: parse_member(entry.value, entry.key) for node, entry in entries.items() if entry is not None}


def _row(node: int, group: Group, member: Member | None, running: Node | None) -> dict[str, Any]:
    directory = None if member is None else member.directory_id
    if group.leader is not None and group.leader.node == node:
        role = "leader"
    elif node in group.adding or node in group.removing:
        role = "adding" if node in group.adding else "removing"
    else:
        role = "follower"
    return {
        "node": node,
        "role": role,
        "sync": "ISR" if directory in group.isr else "ELR" if directory in group.elr else None,
        "runs": "yes" if running is not None else "no",
        "directory_id": directory,
        "starts": None if member is None else member.starts,
        "rack": None if running is None else running.rack or None,
        "address": None if running is None else running.addresses.get("peer"),
        "addresses": {} if running is None else running.addresses,
        "feature_level": None if running is None else running.feature_level,
        "lag_bytes": None,
        "lag_seconds": None,
        "unapplied_frames": None,
    }


def problems(group: Group, rows: list[dict[str, Any]]) -> list[str]:
    """Sentences, the gravest first; none where all is well."""
    found = []
    if group.epoch == 0:
        found.append(f"The group has not begun. Start node {group.replicas[0]}.")
    elif group.leader is None:
        found.append("No node leads: clients wait. A node of the ISR, or else of the ELR, must run and reach etcd.")
    elif not any(row["role"] == "leader" and row["runs"] == "yes" for row in rows):
        found.append(f"Node {group.leader.node} leads, and etcd has not heard of it for a lease.")
    if group.epoch > 0 and len(group.isr) < group.min_isr:
        found.append(
            f"The ISR has {len(group.isr)} of the {group.min_isr} members that min.insync.replicas asks for: writes "
            "are refused, reads go on."
        )
    behind = [str(row["node"]) for row in rows if row["sync"] is None and row["role"] == "follower"]
    if group.epoch > 0 and behind:
        found.append(f"Not in sync: node {', '.join(behind)}.")
    known = {row["directory_id"] for row in rows}
    if lost := [each for each in (*group.isr, *group.elr) if each not in known]:
        found.append(f"No node has the directory {', '.join(lost)} any more, which was in sync.")
    if group.transfer_to is not None:
        found.append(f"The leader is asked to hand over to node {group.transfer_to}.")
    return found
