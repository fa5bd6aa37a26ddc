"""`headrace cluster`: what etcd keeps of a cluster: begin it, show it, change its settings and its nodes.

These commands need etcd alone: no broker has to run. Nodes act on what they write.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any
from uuid import uuid4

import typer

from headrace.cli.connect import tls_context
from headrace.cli.given_admin import PasswordFile, make_admin
from headrace.cli.options import FORMAT_OPTIONS, Format, Options, add_options, assignments
from headrace.cli.output import print_json, show
from headrace.errors import ConfigError, HeadraceError
from headrace.targets import local_path

if TYPE_CHECKING:
    from headrace.cluster.etcd import Etcd
    from headrace.cluster.peer_tls import PeerTls
    from headrace.cluster.records import AdminRecord, Group, Keys

app = typer.Typer(help="Sets up, shows and changes a cluster of nodes.", no_args_is_help=True)

INT32_MAX = (1 << 31) - 1
DEFAULT_GROUP = "main"
# Longer than an election inside of etcd takes.
PATIENCE_SECONDS = 10.0

OPTIONS: Options = {
    "cluster": (
        Annotated[
            str,
            typer.Option(
                envvar="HEADRACE_CLUSTER",
                metavar="ETCD_URL",
                help="etcd://HOST:PORT,HOST:PORT/NAME: the members of etcd, and the cluster's name. etcds:// with TLS.",
            ),
        ],
        ...,
    ),
    "group": (Annotated[str, typer.Option(envvar="HEADRACE_GROUP", help="The group of nodes.")], DEFAULT_GROUP),
    "etcd_user": (Annotated[str, typer.Option(envvar="HEADRACE_ETCD_USER", help="The user at etcd.")], ""),
    "etcd_password_file": (
        Annotated[
            str,
            typer.Option(envvar="HEADRACE_ETCD_PASSWORD_FILE", metavar="FILE", help="A file with the user's password."),
        ],
        "",
    ),
    "etcd_ca": (
        Annotated[str, typer.Option(envvar="HEADRACE_ETCD_CA", metavar="FILE", help="Trust these authorities (PEM).")],
        "",
    ),
    "etcd_cert": (
        Annotated[
            str, typer.Option(envvar="HEADRACE_ETCD_CERT", metavar="FILE", help="Present this certificate (PEM).")
        ],
        "",
    ),
    "etcd_key": (
        Annotated[str, typer.Option(envvar="HEADRACE_ETCD_KEY", metavar="FILE", help="The certificate's key (PEM).")],
        "",
    ),
    **FORMAT_OPTIONS,
}


def _number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 11 and 1 <= int(text) <= INT32_MAX):
        raise HeadraceError(f"{name} must be a whole number of 1 to {INT32_MAX} (got {text!r})")
    return int(text)


def _flag(name: str, text: str) -> bool:
    if text not in ("true", "false"):
        raise HeadraceError(f"{name} must be true or false (got {text!r})")
    return text == "true"


# By Kafka's names: the fields of the group's record.
SETTINGS: dict[str, tuple[str, Callable[[str, str], Any]]] = {
    "min.insync.replicas": ("min_isr", _number),
    "replica.lag.time.max.ms": ("lag_ms", _number),
    "unclean.leader.election.enable": ("unclean", _flag),
}

PeerCa = Annotated[
    str, typer.Option(envvar="HEADRACE_PEER_TLS_CA", metavar="FILE", help="The authorities of the nodes' certificates.")
]
PeerCert = Annotated[
    str, typer.Option(envvar="HEADRACE_PEER_TLS_CERT", metavar="FILE", help="The certificate to show to the nodes.")
]
PeerKey = Annotated[
    str, typer.Option(envvar="HEADRACE_PEER_TLS_KEY", metavar="FILE", help="That certificate's private key.")
]


def _peer_tls(ca: str, cert: str, key: str) -> PeerTls | None:
    """What the nodes are asked with, where they speak TLS with each other."""
    from headrace.cluster.peer_tls import load

    if not (ca or cert or key):
        return None
    if not (ca and cert and key):
        raise HeadraceError("--peer-tls-ca, --peer-tls-cert and --peer-tls-key go together: give all, or none.")
    cert, key, ca = (local_path(each, "--peer-tls files") for each in (cert, key, ca))
    return load(cert, key, ca)


NodeId = Annotated[int, typer.Argument(metavar="NODE", min=0, max=INT32_MAX, help="The node's id.")]


@dataclass(frozen=True, slots=True)
class Context:
    """What a command works on."""

    etcd: Etcd
    keys: Keys
    group: str
    as_json: bool

    @property
    def group_key(self) -> str:
        return self.keys.group(self.group)

    async def change(self, change: Callable[[Group], Group], sentence: str) -> None:
        """Change the group's record, and print what follows."""
        from headrace.cluster.swaps import change_group

        changed = await change_group(self.etcd, self.group_key, change)
        if self.as_json:
            print_json(asdict(changed))
        else:
            print(sentence)

    async def raise_feature_level(self, level: int) -> None:
        """Change the cluster's record, once every node knows the level."""
        from headrace.cluster.changes import raise_feature_level
        from headrace.cluster.status import running_nodes
        from headrace.cluster.swaps import change_cluster

        running = running_nodes(await self.etcd.read_prefix(self.keys.prefix), self.keys)
        changed = await change_cluster(
            self.etcd, self.keys.cluster, partial(raise_feature_level, level=level, running=running)
        )
        if self.as_json:
            print_json(asdict(changed))
        else:
            print(f"cluster {self.keys.name}: feature.level={level}")

    async def give_admin(self, admin: AdminRecord) -> None:
        """Put an administrator where the leader takes it, in place of one that still waits there."""
        from headrace.cluster.swaps import swap

        key = self.keys.admin(self.group)
        waiting = await self.etcd.read(key)
        if await swap(self.etcd, key, 0 if waiting is None else waiting.revision, admin.encode()) is not None:
            raise HeadraceError("another administrator was given, or taken, at this moment. Try again.")

    async def directory_of(self, node: int) -> str | None:
        """The data directory that a node was last started with."""
        from headrace.cluster.records import parse_member

        entry = await self.etcd.read(self.keys.member(node))
        return None if entry is None else parse_member(entry.value, entry.key).directory_id


def with_etcd(command: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Make a plain command of a coroutine whose parameter `context` is the cluster in etcd."""

    def run(
        cluster: str,
        group: str,
        etcd_user: str,
        etcd_password_file: str,
        etcd_ca: str,
        etcd_cert: str,
        etcd_key: str,
        output: Format,
        output_json: bool,
        **arguments: Any,
    ) -> None:
        from headrace.cluster.errors import EtcdUnavailable
        from headrace.cluster.etcd import Etcd
        from headrace.cluster.records import Keys
        from headrace.cluster.url import check_name, parse_cluster_url

        try:
            url = parse_cluster_url(cluster)
        except ConfigError as error:
            raise HeadraceError(f"--cluster (or HEADRACE_CLUSTER): {error}") from None
        check_name(group, "group")
        tls = tls_context(etcd_ca, etcd_cert, etcd_key, "etcd")
        if tls is not None and not url.is_tls:
            raise HeadraceError("--etcd-ca, --etcd-cert and --etcd-key are for TLS. Use etcds:// in --cluster.")
        if url.is_tls and tls is None:
            from headrace.client.tls import client_context

            tls = client_context()
        password = _read_password(etcd_password_file) if etcd_password_file else ""

        async def connected() -> None:
            etcd = Etcd(url.members, tls=tls, user=etcd_user, password=password, patience_seconds=PATIENCE_SECONDS)
            try:
                await command(
                    context=Context(etcd, Keys(url.name), group, output_json or output is Format.JSON), **arguments
                )
            except EtcdUnavailable as error:
                raise HeadraceError(f"{str(error).rstrip('.')}. Is etcd running? See --cluster.") from None
            finally:
                await etcd.close()

        asyncio.run(connected())

    return add_options(command, run, OPTIONS, ["context"])


def _read_password(file: str) -> str:
    with open(local_path(file, "--etcd-password-file"), "rb") as opened:
        try:
            return opened.read(4096).decode().rstrip("\r\n")
        except UnicodeDecodeError:
            raise HeadraceError(f"--etcd-password-file {file} is not UTF-8 text") from None


@app.command()
@with_etcd
async def init(
    context: Context,
    nodes: Annotated[
        list[int] | None,
        typer.Argument(metavar="NODE...", min=0, max=INT32_MAX, help="Ids of the nodes. The first begins the group."),
    ] = None,
    min_insync_replicas: Annotated[
        int | None, typer.Option(min=1, max=INT32_MAX, help="Default: a majority of the nodes.")
    ] = None,
    from_nodes: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT,...",
            help="Instead of NODE: rebuild the records of a lost etcd from the nodes at these peer addresses.",
        ),
    ] = "",
    without: Annotated[
        list[int] | None,
        typer.Option(metavar="NODE", min=0, max=INT32_MAX, help="With --from-nodes: a node that is gone for good."),
    ] = None,
    admin: Annotated[
        str,
        typer.Option(metavar="NAME", help="Also make this user, with the role admin, once a node leads the new group."),
    ] = "",
    password_file: PasswordFile = "",
    peer_tls_ca: PeerCa = "",
    peer_tls_cert: PeerCert = "",
    peer_tls_key: PeerKey = "",
) -> None:
    """Begins a cluster with one group of nodes, or rebuilds the records of a lost etcd from the nodes."""
    if bool(nodes) == bool(from_nodes):
        raise HeadraceError("give the ids of the nodes, or --from-nodes with their peer addresses")
    if from_nodes:
        if min_insync_replicas is not None:
            raise HeadraceError("--min-insync-replicas is for a new group: use headrace cluster set afterwards")
        if admin:
            raise HeadraceError("--admin is for a new group. Use headrace cluster admin afterwards.")
        await _rebuild(context, from_nodes, without or [], _peer_tls(peer_tls_ca, peer_tls_cert, peer_tls_key))
    elif without:
        raise HeadraceError("--without goes with --from-nodes")
    elif password_file and not admin:
        raise HeadraceError("--password-file is the administrator's. Give --admin, too.")
    else:
        made = make_admin(admin, password_file) if admin else None
        await _begin(context, nodes or [], min_insync_replicas, made)


async def _rebuild(context: Context, from_nodes: str, without: list[int], tls: PeerTls | None) -> None:
    from headrace.addresses import parse_address
    from headrace.cluster import rebuilding
    from headrace.cluster.asking import ask_all

    addresses = [parse_address(each.strip()) for each in from_nodes.split(",")]
    reports = await ask_all([each for each in addresses if each is not None], tls)
    if wrong := [each for each in reports if each.group != context.group]:
        raise HeadraceError(f"node {wrong[0].node} belongs to group {wrong[0].group!r}. Use --group.")
    view = await context.etcd.read_prefix(context.keys.prefix)
    rebuilt = rebuilding.rebuild(reports, *rebuilding.read(view, context.keys, context.group), without)
    await rebuilding.write(context.etcd, context.keys, view, context.group, rebuilt)
    if context.as_json:
        print_json({"cluster": asdict(rebuilt.cluster), "group": asdict(rebuilt.group)})
        return
    group = rebuilt.group
    leads = [number for number, member in rebuilt.members.items() if member.directory_id in group.isr]
    print(
        f"group {context.group} of cluster {context.keys.name} is rebuilt: version {group.version}, epoch {group.epoch}"
    )
    if leads:
        print(f"Node {leads[0]} has every committed message and leads next; the others join it by themselves.")


async def _begin(
    context: Context, nodes: list[int], min_insync_replicas: int | None, admin: AdminRecord | None
) -> None:
    from headrace.cluster.changes import new_group
    from headrace.cluster.records import Cluster, parse_cluster
    from headrace.cluster.swaps import swap

    group = new_group(nodes, min_insync_replicas)
    cluster = Cluster(str(uuid4()))
    # A cluster that is there gets another group.
    if (found := await swap(context.etcd, context.keys.cluster, 0, cluster.encode())) is not None:
        assert found.current is not None
        cluster = parse_cluster(found.current.value, found.current.key)
    exists = HeadraceError(f"the cluster {context.keys.name!r} has a group {context.group!r} already")
    if admin is not None:
        # First: the node that leads then finds it.
        if await context.etcd.read(context.group_key) is not None:
            raise exists
        await context.give_admin(admin)
    if await swap(context.etcd, context.group_key, 0, group.encode()) is not None:
        raise exists
    if context.as_json:
        print_json({"cluster": asdict(cluster), "group": asdict(group)})
        return
    print(f"cluster {context.keys.name} has the id {cluster.id}")
    print(f"group {context.group} has the nodes {_join(nodes)}, and min.insync.replicas is {group.min_isr}")
    print(f"Start the nodes; node {nodes[0]} begins the group.")
    if admin is not None:
        print(f"The user {admin.user} is an administrator from then on.")


@app.command()
@with_etcd
async def status(
    context: Context, peer_tls_ca: PeerCa = "", peer_tls_cert: PeerCert = "", peer_tls_key: PeerKey = ""
) -> None:
    """Shows the group's leader, who is in sync, which nodes run, how far they lag, and what is wrong."""
    from headrace.cluster.status import read_status

    found = await read_status(
        context.etcd, context.keys, context.group, _peer_tls(peer_tls_ca, peer_tls_cert, peer_tls_key)
    )
    if context.as_json:
        print_json(found)
        return
    cluster, group = found["cluster"], found["group"]
    leader = "no node leads" if group["leader"] is None else f"node {group['leader']['node']} leads"
    print(f"cluster {cluster['name']}: id {cluster['id']}, feature level {cluster['feature_level']}")
    print(f"group {group['name']}: {leader}, epoch {group['epoch']}, version {group['version']}")
    for name, (field, _) in SETTINGS.items():
        print(f"  {name}={json.dumps(group[field])}")
    columns = ("node", "role", "sync", "runs", "lag_bytes", "lag_seconds", "directory_id", "starts", "rack", "address")
    show(found["nodes"], False, columns)
    show(found["etcd"], False, ("etcd", "version"))
    for problem in found["problems"]:
        print(problem)


@app.command("set")
@with_etcd
async def set_settings(
    context: Context,
    settings: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME=VALUE...",
            help="min.insync.replicas, replica.lag.time.max.ms, unclean.leader.election.enable; feature.level alone.",
        ),
    ],
) -> None:
    """Changes settings of the group, or raises the cluster's feature.level. Nodes take them over at once."""
    from headrace.cluster.changes import configure

    given = {}
    if len(settings) == 1 and settings[0].startswith("feature.level="):
        await context.raise_feature_level(_number(*settings[0].split("=", 1)))
        return
    for name, value in assignments(settings, "a setting").items():
        if name not in SETTINGS:
            raise HeadraceError(f"there is no setting {name!r}. Use {', '.join(SETTINGS)}.")
        field, read = SETTINGS[name]
        given[field] = read(name, value)
    await context.change(partial(configure, **given), f"group {context.group}: {_join(settings)}")


@app.command("admin")
@with_etcd
async def give_admin(
    context: Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The user.")],
    password_file: PasswordFile = "",
) -> None:
    """Makes a user with the role admin, or gives it another password: for a group that no user can log in to."""
    from headrace.cluster.swaps import read_group

    read_group(await context.etcd.read(context.group_key), context.group_key)
    admin = make_admin(name, password_file)
    await context.give_admin(admin)
    if context.as_json:
        print_json({"id": admin.id, "user": admin.user})
    else:
        print(f"The leader of group {context.group} makes {name} an administrator within a moment.")


@app.command("add-node")
@with_etcd
async def add_node(context: Context, node: NodeId) -> None:
    """Adds a node to the group. It copies everything, and is then in sync."""
    from headrace.cluster.changes import add_replica

    await context.change(
        partial(add_replica, node=node),
        f"node {node} is added to group {context.group}. Start it with an empty data directory; it is in the ISR once "
        "it has caught up.",
    )


@app.command("remove-node")
@with_etcd
async def remove_node(context: Context, node: NodeId) -> None:
    """Removes a node from the group. The leader carries it out."""
    from headrace.cluster.changes import remove_replica

    await context.change(
        partial(remove_replica, node=node),
        f"node {node} leaves group {context.group}: the leader takes it out once enough others are in sync. Stop it "
        "when `headrace cluster status` shows it no more.",
    )


@app.command()
@with_etcd
async def transfer(context: Context, node: NodeId) -> None:
    """Asks the leader to hand over to another node that is in sync."""
    from headrace.cluster.changes import request_transfer

    directory = await context.directory_of(node)
    await context.change(
        partial(request_transfer, node=node, directory_id=directory),
        f"the leader of group {context.group} is asked to hand over to node {node}. `headrace cluster status` shows "
        "when it has.",
    )


def _join(values: list[Any]) -> str:
    return ", ".join(map(str, values))
