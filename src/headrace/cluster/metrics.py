"""What a replica shows to Prometheus: its role, who is in sync, how far followers are, and what has happened."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.cluster.replica import Replica, Role

PREFIX = "headrace_replica_"


def render(replica: Replica) -> str:
    """In Prometheus' text form."""
    lines: list[str] = []
    for name, kind, help, values in _metrics(replica):
        shown = f"{PREFIX}{name}"
        lines += [f"# HELP {shown} {help}", f"# TYPE {shown} {kind}"]
        lines += [f"{shown}{labels} {value}" for labels, value in values]
    return "\n".join([*lines, ""])


Values = list[tuple[str, float]]


def _metrics(replica: Replica) -> Iterator[tuple[str, str, str, Values]]:
    node, log = replica.node, replica.log
    journal, group, figures = node.journal, node.group, node.figures

    def one(name: str, help: str, value: float, kind: str = "gauge") -> tuple[str, str, str, Values]:
        return name, kind, help, [("", value)]

    yield one("leads", "Whether this node leads its group and serves.", int(replica.role is Role.LEADER))
    yield one("epoch", "The latest epoch that this node knows of.", node.epoch)
    yield one("isr", "Replicas in sync.", len(group.isr) if group is not None else 0)
    yield one("min_isr", "As many must be in sync for an append.", group.min_isr if group is not None else 0)
    yield one("elr", "Eligible leader replicas outside of the ISR.", len(group.elr) if group is not None else 0)
    yield one("replicas", "Replicas of the group, living or not.", len(group.replicas) if group is not None else 0)
    yield one("etcd_reached", "Whether etcd could be read within the last lease.", int(node.reaches_etcd))
    yield one(
        "clock_trusted",
        "Whether the clock is near that of any follower; otherwise nothing expires.",
        int(node.duties.trusts_clock),
    )
    yield one("flushed_frame", "The last frame that this node's device has.", journal.flushed)
    yield one("committed_frame", "The last frame that every replica in sync has.", journal.committed)
    yield one("applied_frame", "The last frame that this node's partitions have.", journal.applied)
    yield one("uncommitted_bytes", "Of the leader: what waits for other replicas.", log.replicated.uncommitted_bytes)
    yield one("elections_total", "Elections that this node has won.", figures.elections, "counter")
    yield one(
        "unclean_elections_total", "Of these, those that may have lost messages.", figures.unclean_elections, "counter"
    )
    yield one("leaderships_total", "Times that this node began to lead.", figures.leaderships, "counter")
    yield one(
        "truncations_total",
        "Times that this node cut off what its leader did not have.",
        journal.truncations,
        "counter",
    )
    yield one(
        "peers_refused_total",
        "Connections between nodes that were refused for TLS or a certificate.",
        figures.peers_refused,
        "counter",
    )
    yield one("refused_total", "Appends refused for too few replicas in sync.", log.refused, "counter")
    copies = replica.copies
    yield one("copying", "Whether what this node has is no whole copy yet.", int(node.is_copying))
    yield one("copied_bytes_total", "Bytes copied from leaders.", copies.progress.received, "counter")
    given = [(f'{{node="{each.node}"}}', each) for each in copies.given.progress]
    yield (
        "copy_done_bytes", "gauge", "Of the leader: what a follower has of the round of its copy.",
        [(labels, each.done) for labels, each in given],
    )  # fmt: skip
    yield (
        "copy_size_bytes", "gauge", "Of the leader: about how much that round has.",
        [(labels, each.size) for labels, each in given],
    )  # fmt: skip
    yield "copy_round", "gauge", "Of the leader: which round it is.", [(labels, each.round) for labels, each in given]
    leadership = node.leadership
    followers = sorted(
        (number, directory)
        for directory, number in node.numbers.items()
        if leadership is not None and group is not None and number in group.replicas and directory != node.me
    )
    seconds: Values = []
    size: Values = []
    for number, directory in followers:
        assert leadership is not None
        labels = f'{{node="{number}"}}'
        seconds.append((labels, round(leadership.lag_of(directory), 3)))
        size.append((labels, journal.size_since(leadership.acknowledged(directory))))
    yield "lag_seconds", "gauge", "Of the leader: for how long a follower has lacked something.", seconds
    yield "lag_bytes", "gauge", "Of the leader: how much of its journal a follower lacks.", size
