"""Those who connect to a node: followers, nodes that ask for a copy, and commands that ask how it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.cluster.connection import PeerConnection
from headrace.cluster.peer_network import PeerNetwork
from headrace.cluster.wire import Caller, Copy, FollowerState, Hello, Inquiry, Message, Refusal, Report
from headrace.log.group_frames import Position

if TYPE_CHECKING:
    from headrace.cluster.node import Node, NodeSettings

NO_LEADER = "this node does not lead its group"


class Reception:
    """Of one node."""

    def __init__(self, node: Node, settings: NodeSettings, network: PeerNetwork) -> None:
        self._node = node
        self._settings = settings
        self._network = network
        self.serve_copy: Callable[[PeerConnection, Copy], None] = lambda connection, _: connection.close()
        """Called with the first message of a connection on which a follower asks for a copy."""

    async def listen(self, host: str, port: int) -> str:
        """Open the door for other nodes; HOST:PORT of it. Raises OSError."""
        return await self._network.listen(self._accept, host, port)

    def _accept(self) -> PeerConnection:
        return PeerConnection(self, self._settings.frame_max_bytes)

    def on_message(self, connection: PeerConnection, message: Message) -> None:
        """A peer has said something."""
        leadership = self._node.leadership
        match message:
            case Copy():
                self.serve_copy(connection, message)
            case Inquiry():
                report = self.report()
                connection.close(report or Refusal("this node has not read anything of etcd yet", self._node.epoch))
            case Hello():
                version = self._settings.versions.common(message.caller.oldest, message.caller.newest)
                refusal = self.refusal(message.caller, connection)
                leadership = self._node.leadership
                if refusal is not None or leadership is None or version is None:
                    connection.close(Refusal(refusal or NO_LEADER, self._node.epoch))
                else:
                    leadership.open_session(connection, message, version)
            case _ if leadership is not None:
                leadership.on_message(connection, message)

    def refusal(self, caller: Caller, connection: PeerConnection) -> str | None:
        """Why a node is not answered, if it is not."""
        node, settings = self._node, self._settings
        record = node.alive.get(caller.directory)
        refusal = self._network.refusal(connection, caller.node, None if record is None else record.peer)
        if refusal is not None:
            return refusal
        versions = settings.versions
        if versions.common(caller.oldest, caller.newest) is None:
            return (
                f"this node speaks versions {versions.oldest} to {versions.newest} of the peer protocol, not "
                f"{caller.oldest} to {caller.newest}"
            )
        if (caller.cluster, caller.group) != (settings.cluster_id, settings.group):
            return f"this node belongs to group {settings.group!r} of cluster {settings.cluster_id}"
        if caller.epoch > node.epoch or (node.leadership is not None and caller.epoch > node.leadership.epoch):
            node.learn_epoch(caller.epoch)
            return f"epoch {caller.epoch} is later than this node's"
        return None

    def on_closed(self, connection: PeerConnection) -> None:
        """A peer is gone."""
        if self._node.leadership is not None:
            self._node.leadership.on_closed(connection)

    def on_drained(self, connection: PeerConnection) -> None:
        """A peer reads again."""
        if self._node.leadership is not None:
            self._node.leadership.on_drained(connection)

    def report(self) -> Report | None:
        """How this node is, once it knows of its group."""
        node, settings, me = self._node, self._settings, self._settings.me
        if node.group is None:
            return None
        journal = node.journal
        return Report(
            settings.cluster_id,
            node.feature_level,
            settings.group,
            me.node,
            me.directory_id,
            me.starts,
            node.is_copying,
            node.leadership is not None,
            node.epoch,
            Position(journal.epoch_at(journal.flushed), journal.flushed),
            journal.committed,
            node.group,
            tuple(self._followers()),
        )

    def _followers(self) -> list[FollowerState]:
        node = self._node
        leadership, group = node.leadership, node.group
        if leadership is None or group is None:
            return []
        places = sorted((number, directory) for directory, number in node.numbers.items() if directory != node.me)
        return [
            FollowerState(
                number,
                node.journal.size_since(leadership.acknowledged(directory)),
                int(leadership.lag_of(directory) * 1000),
                leadership.applied(directory),
            )
            for number, directory in places
            if number in group.replicas
        ]
