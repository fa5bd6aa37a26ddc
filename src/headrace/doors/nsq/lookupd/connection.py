"""One connection of a producer to the look-up door: commands in, answers out.

Every error of this protocol ends the connection, as in nsqlookupd. What a producer registered goes with it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from headrace.addresses import format_address
from headrace.broker.security import Session
from headrace.doors.connection import BufferedConnection
from headrace.doors.nsq.errors import CommandError
from headrace.doors.nsq.lookupd.codec import Codec, Command, answer
from headrace.doors.nsq.lookupd.node import Node
from headrace.doors.nsq.lookupd.registry import Producer, RegistryFull
from headrace.doors.nsq.lookupd.rights import COMMANDS
from headrace.doors.nsq.names import is_channel_name, is_topic_name
from headrace.errors import NotAuthorized

if TYPE_CHECKING:
    from headrace.doors.nsq.lookupd.listener import Lookupd

OK = b"OK"
PORT_MAX = 65_535
TEXT_MAX = 255


class LookupConnection(BufferedConnection):
    """A producer that registers."""

    __slots__ = ("_codec", "_producer", "session")

    door: Lookupd

    def __init__(self, door: Lookupd) -> None:
        super().__init__(door)
        self._codec = Codec()
        self._producer: Producer | None = None
        self.session = Session(door="lookup")

    def _opened(self) -> None:
        super()._opened()
        self.session.host = self.address[0]

    def connection_lost(self, error: Exception | None) -> None:
        if self._producer is not None:
            self.door.registry.leave(self._producer)
            self._producer = None
        super().connection_lost(error)

    def _consume(self, buffer: bytearray, end: int) -> int:
        self._codec.feed(buffer[:end])
        answers: list[bytes] = []
        refused = False
        try:
            while (command := self._codec.next_command()) is not None:
                answers.append(answer(self._answer(command)))
        except CommandError as error:
            text = str(error)
            answers.append(answer(f"{error.nsq_code} {text}".encode() if text else error.nsq_code.encode()))
            refused = True
        if answers:
            self.write(b"".join(answers))
        if refused:
            self.close()
        return end

    def _answer(self, command: Command) -> bytes:
        declaration = COMMANDS.get(command.name)
        if isinstance(declaration, tuple):
            try:
                for each in declaration:
                    self.door.security.check(self.session, each.operation, each.resource, each.by)
            except NotAuthorized as error:
                raise CommandError("E_UNAUTHORIZED", f"{command.name} {error}") from None
        if command.name == "PING":
            if self._producer is not None:
                self.door.registry.heard(self._producer)
            return OK
        if command.name == "IDENTIFY":
            return self._identify(command.body)
        if command.name in ("REGISTER", "UNREGISTER"):
            producer = self._producer
            if producer is None:
                raise CommandError("E_INVALID", "client must IDENTIFY")
            topic, channel = _topic_and_channel(command)
            if command.name == "UNREGISTER":
                self.door.registry.unregister(producer, topic, channel)
                return OK
            try:
                self.door.registry.register(producer, topic, channel)
            except RegistryFull as full:
                raise CommandError("E_INVALID", str(full)) from None
            return OK
        raise CommandError("E_INVALID", f"invalid command {command.name}")

    def _identify(self, body: bytes) -> bytes:
        if self._producer is not None:
            raise CommandError("E_INVALID", "cannot IDENTIFY again")
        self._producer = self.door.registry.join(_node(body, format_address(*self.address)))
        return json.dumps(self.door.described()).encode()


def _topic_and_channel(command: Command) -> tuple[str, str]:
    if not command.words:
        raise CommandError("E_INVALID", f"{command.name} insufficient number of params")
    topic = command.words[0]
    channel = command.words[1] if len(command.words) > 1 else ""
    if not is_topic_name(topic):
        raise CommandError("E_BAD_TOPIC", f"{command.name} topic name '{topic}' is not valid")
    if channel and not is_channel_name(channel):
        raise CommandError("E_BAD_CHANNEL", f"{command.name} channel name '{channel}' is not valid")
    return topic, channel


def _node(body: bytes, remote_address: str) -> Node:
    """The producer that IDENTIFY describes."""
    try:
        given = json.loads(body)
    except (ValueError, RecursionError):
        raise CommandError("E_BAD_BODY", "IDENTIFY failed to decode JSON body") from None
    if not isinstance(given, dict):
        raise CommandError("E_BAD_BODY", "IDENTIFY failed to decode JSON body")
    texts = [given.get(name) or "" for name in ("hostname", "broadcast_address", "version")]
    ports = [given.get(name) or 0 for name in ("tcp_port", "http_port")]
    if not all(isinstance(text, str) and len(text) <= TEXT_MAX for text in texts):
        raise CommandError("E_BAD_BODY", "IDENTIFY failed to decode JSON body")
    if not all(type(port) is int and 0 <= port <= PORT_MAX for port in ports):
        raise CommandError("E_BAD_BODY", "IDENTIFY failed to decode JSON body")
    hostname, broadcast_address, version = texts
    tcp_port, http_port = ports
    if not (broadcast_address and version and tcp_port and http_port):
        raise CommandError("E_BAD_BODY", "IDENTIFY missing fields")
    return Node(remote_address, hostname, broadcast_address, tcp_port, http_port, version)
