"""What can go wrong between a node, its data directory and etcd. Each error is a sentence for an operator."""

from __future__ import annotations

from headrace.errors import HeadraceError


class EtcdError(HeadraceError):
    """The root of what etcd, or the way to it, can refuse."""


class EtcdUnavailable(EtcdError):
    """No member of etcd answers. Nothing was changed."""


class EtcdRejected(EtcdError):
    """etcd answers, and the answer is no: a wrong password, a missing right, no space, too old a version. Nothing was
    changed."""


class OutcomeUnknown(EtcdError):
    """A request was sent and its answer did not come: etcd may have carried it out, or may still do so."""


class RecordInvalid(HeadraceError):
    """A record in etcd is not what this version writes."""


class ChangeRefused(HeadraceError):
    """The group's record may not be changed so."""


class NotInitialized(HeadraceError):
    """etcd has no such cluster, or no such group of it."""


class StartRefused(HeadraceError):
    """The node may not start: with this data directory, under this number, or beside this etcd."""


class EtcdWentBack(HeadraceError):
    """A record in etcd is older than one that this node has acted on."""


class NodeUnheard(HeadraceError):
    """A node could not be asked how it is."""
