"""`/v1/cluster`: which cluster this is, and in a group, how its nodes stand as this one sees it.

Clients that reach a broker through several doors make sure by it that all of them are of one cluster. What etcd last
had may be late; `etcd_reached` tells whether it is.
"""

from __future__ import annotations

from headrace.broker.broker import Broker
from headrace.broker.membership import Membership
from headrace.broker.security import Operation as Right
from headrace.doors.http.api.operations import Operation
from headrace.doors.http.api.responses import Answer, Names
from headrace.doors.http.api.rights import on_cluster
from headrace.doors.http.api.schemas import Named, array, decimal, flag, integer, mapping, nullable, object_of, text
from headrace.doors.http.server.messages import Headers, Request
from headrace.version import VERSION

PATH = "/v1/cluster"


GROUP = Named(
    "NodeGroup",
    object_of(
        {
            "role": text(choices=("leader", "follower")),
            "leader": nullable(integer("The node that leads.")),
            "epoch": integer("Raised with each leader."),
            "replicas": array(integer()),
            "isr": array(integer(), "The nodes that are in sync."),
            "elr": array(integer(), "Those that were when fewer than `min_insync_replicas` were left."),
            "min_insync_replicas": integer(),
            "lag_seconds": mapping(decimal(), "By node, and only where this one leads."),
            "etcd_reached": flag("Whether what is shown is not late."),
            "nodes": mapping(object_of({"rack": text(), "addresses": mapping(text())})),
        }
    ),
)
CLUSTER = Named("Cluster", object_of({"cluster_id": text(), "node_id": integer(), "version": text()}, {"group": GROUP}))


@Operation(
    "GET",
    PATH,
    "Shows which cluster this is and, in a group, how its nodes stand as this one sees it.",
    rights=on_cluster(Right.DESCRIBE),
    answer=CLUSTER,
    command="cluster status",
    is_local=True,
)
async def show_cluster(broker: Broker, request: Request, names: Names) -> Answer:
    shown: dict[str, object] = {"cluster_id": broker.cluster_id, "node_id": broker.node_id, "version": VERSION}
    if broker.log.is_replicated:
        shown["group"] = describe(broker.membership)
    return shown


def describe(group: Membership) -> dict[str, object]:
    """The group of this node."""
    return {
        "role": "leader" if group.leads else "follower",
        "leader": group.leader,
        "epoch": group.epoch,
        "replicas": list(group.replicas),
        "isr": list(group.isr),
        "elr": list(group.elr),
        "min_insync_replicas": group.min_isr,
        # By node, and only where this one leads.
        "lag_seconds": {str(number): round(lag, 3) for number, lag in sorted(group.lags.items())},
        "etcd_reached": group.reaches_metadata,
        "nodes": {
            str(number): {"rack": view.rack, "addresses": dict(view.addresses)}
            for number, view in sorted(group.nodes.items())
        },
    }


def leader_url(group: Membership, *, tls: bool) -> str | None:
    """Where the HTTP door of the node that leads is, if it is another node and has one; `tls`: as this node's door
    speaks TLS, so does that of every node."""
    view = group.nodes.get(group.leader) if group.leader is not None else None
    if view is None or view.number == group.node_id or "http" not in view.addresses:
        return None
    return f"{'https' if tls else 'http'}://{view.addresses['http']}"


def headers_of_refusal(group: Membership, *, tls: bool) -> Headers:
    """With the 503 to a request that the group could not take now."""
    url = leader_url(group, tls=tls)
    return (("Retry-After", "1"), *((("Headrace-Leader", url),) if url is not None else ()))
