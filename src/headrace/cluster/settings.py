"""The settings of a node that belongs to a group. Light: a broker that runs alone imports this of the cluster, and no
more."""

from __future__ import annotations

from headrace.addresses import parse_address
from headrace.errors import ConfigError
from headrace.settings import HOST_PORT, Settings, setting

GROUP = "main"


def _check_cluster(text: str) -> None:
    if text:
        from headrace.cluster.url import parse_cluster_url

        parse_cluster_url(text)


def _check_group(text: str) -> None:
    # The default needs no look at what makes a name.
    if text != GROUP:
        from headrace.cluster.url import check_name

        check_name(text, "group")


def _check_peer(text: str) -> None:
    if text:
        parse_address(text)


class ClusterSettings(Settings):
    """Which group a node belongs to, and how others reach it."""

    TITLE = "Cluster"

    cluster: str = setting(
        "",
        "etcd://HOST:PORT,HOST:PORT/NAME: the members of etcd, and the cluster that this node belongs to (`etcds://`: "
        "over TLS); without it the broker runs alone.",
        parse=_check_cluster,
        metavar="ETCD_URL",
    )
    group: str = setting(GROUP, "The node's group in the cluster.", parse=_check_group, metavar="NAME")
    peer: str = setting(
        "", "HOST:PORT where the other nodes of the group reach this one.", parse=_check_peer, metavar=HOST_PORT
    )
    peer_tls_ca: str = setting(
        "",
        "A PEM file with the authorities of the nodes' certificates: nodes then speak TLS with each other, and each "
        "must show a certificate that names the host of its peer address.",
        metavar="FILE",
    )
    peer_tls_cert: str = setting(
        "",
        "A PEM file with the certificate that this node presents to the others; by default tls_cert.",
        metavar="FILE",
    )
    peer_tls_key: str = setting("", "A PEM file with that certificate's private key.", metavar="FILE")
    rack: str = setting("", "The rack of the node: consumers in the same rack may read from it.", metavar="RACK")
    advertised_host: str = setting(
        "",
        "The host that other nodes and their clients are given for those doors that listen on every interface; by "
        "default that of `peer`.",
        metavar="HOST",
    )
    etcd_ca: str = setting(
        "", "A PEM file with the authorities to trust as etcd's; by default the machine's.", metavar="FILE"
    )
    etcd_cert: str = setting("", "A PEM file with the certificate to present to etcd.", metavar="FILE")
    etcd_key: str = setting("", "A PEM file with that certificate's private key.", metavar="FILE")
    etcd_user: str = setting("", "The user at etcd.", metavar="NAME")
    etcd_password_file: str = setting("", "A file with that user's password.", metavar="FILE")
    replica_uncommitted_max_bytes: int = setting(
        134_217_728,
        "Bytes that may wait for the other replicas; above it, appends are refused.",
        least=1_048_576,
    )
    replica_journal_max_bytes: int = setting(
        1 << 30,
        "Bytes of the journal that are kept for followers that are behind, beyond what recovery needs. A follower "
        "that needs more copies the partitions.",
        least=1_048_576,
    )
    replica_copy_bytes_per_second: int = setting(
        50 << 20,
        "Bytes a second that this node, while it leads, sends in all copies together: to new nodes, and to those "
        "far behind.",
        least=65_536,
    )

    replica_feature_level_max: int = setting(
        0,
        "The highest feature level that this node announces, and with it the version of the protocol between "
        "nodes: it behaves as the version of Headrace that introduced the level, to try a rolling upgrade. 0: no "
        "limit.",
        least=0,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.cluster:
            return
        if not self.peer or self.peer == "off":
            raise ConfigError("cluster needs peer: give HOST:PORT where the other nodes reach this one")
        if bool(self.peer_tls_cert) != bool(self.peer_tls_key):
            raise ConfigError("peer_tls_cert and peer_tls_key go together: give both, or neither")
        if self.peer_tls_cert and not self.peer_tls_ca:
            raise ConfigError("peer_tls_cert needs peer_tls_ca: the authorities that sign the certificates of nodes")
        if bool(self.etcd_cert) != bool(self.etcd_key):
            raise ConfigError("etcd_cert and etcd_key go together: give both, or neither")
        if (self.etcd_ca or self.etcd_cert) and not self.cluster.startswith("etcds://"):
            raise ConfigError("etcd_ca, etcd_cert and etcd_key are for TLS. Use etcds:// in cluster.")
