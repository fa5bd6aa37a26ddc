"""One client of nsqd: commands in order, replies out in the same order.

Runs of PUBs and of FINs go to kernels where they lie in the receive buffer. A publish is answered once it is durable;
the commands behind it are handled meanwhile, and their replies wait in line. Messages and heartbeats overtake it.

A command that must wait for something (a topic that is to be made, a partition that is cold, an authorization that has
run out, a topic that is full) is left in the buffer, and read again when that has come: so waiting needs no copy and no
second way through the code.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from socket import IPPROTO_TCP, SO_KEEPALIVE, SOL_SOCKET, TCP_KEEPIDLE, TCP_KEEPINTVL
from typing import TYPE_CHECKING, Any

import structlog

from headrace.broker.security import Identity as Principal
from headrace.broker.security import Session
from headrace.doors.connection import BUSY, CLOSING, DRAIN, FULL, LOST, MUTED, TURN, UNREAD
from headrace.doors.nsq.errors import CommandError, translate
from headrace.doors.nsq.nsqd import frames, loop_time, publish, subscribe
from headrace.doors.nsq.nsqd.codec import MAGIC, Codec, Command
from headrace.doors.nsq.nsqd.compressed import CompressedConnection
from headrace.doors.nsq.nsqd.compression import StreamError
from headrace.doors.nsq.nsqd.handshake import authenticate, identify
from headrace.doors.nsq.nsqd.heartbeat import Heartbeat
from headrace.doors.nsq.nsqd.identify import Identity
from headrace.errors import HeadraceError, NotAuthorized

if TYPE_CHECKING:
    from headrace.broker.queues import Consumer
    from headrace.broker.queues.delivery import Claimed
    from headrace.broker.security.watches import Watch
    from headrace.doors.nsq.nsqd.auth import Authorization
    from headrace.doors.nsq.nsqd.listener import Nsqd
    from headrace.doors.nsq.nsqd.loop_time import Stretch
    from headrace.doors.nsq.nsqd.publish import Pending, Target

log = structlog.get_logger("headrace.nsq")

# Commands that no kernel takes, in one turn of the loop.
TURN_COMMANDS = 200
# Replies that a client leaves unread before its commands are no longer handled.
REPLIES_MAX = 1_048_576
WRITE_BUFFER_BYTES = 262_144
# How long a client that was refused may go on sending before its connection is cut: long enough to read why.
LINGER_SECONDS = 1.0
CLOSE_SECONDS = 5.0
HANDSHAKE_SECONDS = 10.0
KEEPALIVE_SECONDS = 15


class Connection(CompressedConnection):
    """A client of nsqd. Also the sink of its subscription."""

    __slots__ = (
        "_command",
        "_eof",
        "_heartbeat",
        "_late",
        "_out",
        "_patient",
        "_unread",
        "admitted",
        "authorization",
        "begun",
        "codec",
        "connected_ms",
        "consumer",
        "identity",
        "line",
        "published",
        "ready",
        "session",
        "stretch",
        "subscription",
        "target",
        "upgrading",
        "watches",
    )

    door: Nsqd

    def __init__(self, door: Nsqd) -> None:
        super().__init__(door)
        self.codec = Codec(door.settings)
        self.codec.tls_missing = door.tls_required
        self.identity = Identity()
        self.session = Session()
        self.connected_ms = door.broker.runtime.clock.now_ms()
        self.authorization: Authorization | None = None
        self.consumer: Consumer | None = None
        self.subscription: tuple[str, str] | None = None
        """Topic and channel, by their NSQ names."""
        self.watches: list[Watch] = []
        """The rights that it lives by."""
        self.ready = 0
        """The last RDY."""
        self.published: dict[str, int] = {}
        """Messages by topic."""
        # The PUB that this client sends again and again.
        self.line = b""
        self.target: Target | None = None
        # A topic that was full has room now: the next publish to it does not ask again.
        self.admitted: object = None
        self.begun = False
        """The client has sent which protocol it speaks."""
        self._heartbeat = Heartbeat(self)
        self._eof = False
        self._unread = False
        # Until it fires, nothing is delivered: the client is over its quota.
        self._late: asyncio.TimerHandle | None = None
        # What it takes of the loop just now, where that is limited.
        self.stretch: Stretch | None = None
        self._out: list[bytes] = []
        self.upgrading = False
        """A handshake is under way: nothing else may be sent."""
        self._patient = False
        self._command = ""

    # --- the transport's calls ----------------------------------------------------------------------------------------

    def _opened(self) -> None:
        self.session.number = next(self.door.numbers)
        self.session.host, self.session.door = self.address[0], self.door.metrics.name
        self.session.on_ended = self.end
        socket = self.transport.get_extra_info("socket")
        if socket is not None:
            # A client may want no heartbeats, and a machine that is gone sends nothing.
            socket.setsockopt(SOL_SOCKET, SO_KEEPALIVE, 1)
            socket.setsockopt(IPPROTO_TCP, TCP_KEEPIDLE, KEEPALIVE_SECONDS)
            socket.setsockopt(IPPROTO_TCP, TCP_KEEPINTVL, KEEPALIVE_SECONDS)
        self.transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self.watch()

    def connection_lost(self, error: Exception | None) -> None:
        self._held |= LOST
        self._heartbeat.stop()
        if self._late is not None:
            self._late.cancel()
        if self._task is not None:
            # Not before it has begun, or its work would never have been awaited.
            self.door.loop.call_soon(self._task.cancel)
        subscribe.leave(self)
        super().connection_lost(error)
        self.target = None
        if self.session.identity is not None:
            self.door.broker.security.logout(self.session)

    def eof_received(self) -> bool:
        self._eof = True
        # What it has sent is still done, and answered: the client may only have closed its own side.
        return not self._end_if_done() and not self.identity.tls

    def pause_writing(self) -> None:
        self._unread = True
        self.note_unread()
        if self.consumer is not None:
            self.consumer.hold()

    def resume_writing(self) -> None:
        self._unread = False
        self.note_unread()
        self._go_on_delivering()
        self.release(UNREAD)

    def _go_on_delivering(self) -> None:
        if self.consumer is not None and self._late is None and not self._unread:
            self.consumer.go_on()

    def hold_deliveries(self, seconds: float) -> None:
        """Deliver nothing for as long as the client's quota asks."""
        if self.consumer is not None:
            self.consumer.hold()
            if self._late is not None:
                self._late.cancel()
            self._late = self.door.loop.call_later(seconds, self._end_hold)

    def _end_hold(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None
            self._go_on_delivering()

    def unmute(self) -> None:
        self._end_hold()
        super().unmute()

    def buffer_updated(self, count: int) -> None:
        self._heartbeat.last_received = self.door.loop.time()
        CompressedConnection.buffer_updated(self, count)

    def _let_others(self) -> None:
        """Others have their turn after so many commands, not bytes: kernels handle those that have many."""

    # --- commands -----------------------------------------------------------------------------------------------------

    def _needed(self, buffer: bytearray, position: int, left: int) -> int:
        # Where something holds, the codec has not looked at these bytes.
        return 0 if self._held else self.codec.needed

    def _broken(self, error: StreamError) -> None:
        self.refuse(CommandError("E_INVALID", str(error)))
        self.flush()

    def _failed(self, error: Exception) -> None:
        if isinstance(error, HeadraceError):
            self.refuse(self._translate(self._command, error))
        else:
            log.exception("a command failed", client=self.name)
            self.close()

    def _consume(self, buffer: bytearray, end: int) -> int:
        stretch = loop_time.begin(self) if self.door.broker.quotas.is_active else None
        try:
            return self._consume_commands(buffer, end)
        finally:
            if stretch is not None:
                stretch.end()

    def _consume_commands(self, buffer: bytearray, end: int) -> int:
        """Handle whole commands until one is cut or must wait; the position of the first byte that is left."""
        position = 0
        commands = 0
        name = b""
        self.codec.needed = 0
        try:
            if not self.begun:
                position = self._begin(buffer, end)
            while not self._held and position < end:
                first = buffer[position]
                # "F": most likely one of many FINs.
                if first == 0x46 and self.consumer is not None:
                    count = subscribe.finish_run(self, buffer, position, end)
                    if count:
                        position += count
                        continue
                # "P": most likely a PUB to the same topic as the last one.
                elif first == 0x50 and self.line and buffer.startswith(self.line, position, end):
                    name = b"PUB"
                    taken = publish.pub_run(self, buffer, position, end)
                    if taken > position:
                        position = taken
                        continue
                    if self._held:
                        break
                command = self.codec.next(buffer, position, end)
                if command is None:
                    break
                commands += 1
                name = command.name
                if commands > TURN_COMMANDS:
                    self._go_on_later()
                    break
                position = self._do(command, buffer, position, end)
        except HeadraceError as error:
            self.refuse(self._translate(name.decode(), error))
        except Exception as error:
            self._failed(error)
        self.flush()
        return position

    def _begin(self, buffer: bytearray, end: int) -> int:
        """Read which protocol the client speaks."""
        if end < len(MAGIC) and MAGIC.startswith(buffer[:end]):
            return 0
        if buffer[: len(MAGIC)] != MAGIC:
            self._out.append(frames.BAD_PROTOCOL)
            self._held |= CLOSING
            return end
        self.begun = True
        return len(MAGIC)

    def _do(self, command: Command, buffer: bytearray, position: int, end: int) -> int:
        """Do a command; the position of the next one, or its own where it must be read again."""
        name = command.name
        if name == b"PUB":
            return publish.pub(self, command, buffer, position, end)
        if name == b"MPUB":
            return publish.mpub(self, command, buffer, position)
        if name == b"DPUB":
            return publish.dpub(self, command, buffer, position)
        if name == b"IDENTIFY":
            if self._pending:
                self._held |= DRAIN
                return position
            identify(self, bytes(buffer[command.start : command.end]), last=command.end == end)
        elif name == b"AUTH":
            self.hold_for("AUTH", authenticate(self, bytes(buffer[command.start : command.end])))
        elif name == b"SUB":
            if not self.may("SUB", command.words[0], command.words[1]):
                return position
            self.hold_for("SUB", subscribe.subscribe(self, command.words[0].decode(), command.words[1].decode()))
        elif name != b"NOP":
            subscribe.do(self, command, buffer)
        return command.end

    def _translate(self, command: str, error: HeadraceError) -> CommandError:
        """What the broker refused of a command. A client that is not known yet learns that AUTH may help."""
        if isinstance(error, NotAuthorized):
            if not self.session.user:
                return CommandError("E_AUTH_FIRST", f"AUTH required before {command}: {error}")
            return CommandError("E_UNAUTHORIZED", f"AUTH failed for {command}: {error}")
        return translate(command, error)

    def log_in(self, identity: Principal) -> None:
        """The client has shown who it is."""
        self.door.broker.security.login(self.session, identity)
        # What was admitted before may not be now.
        self.target = None

    def authorize(self, granted: Authorization) -> None:
        """A server of `auth_http` has said who the client is, and what it may do."""
        self.authorization = granted
        self.log_in(Principal(granted.identity, "auth_http"))

    def end(self, reason: str) -> None:
        """The client's identity has ended: its token was revoked, or has expired."""
        if not self.closing:
            self.refuse(CommandError("E_AUTH_FAILED", reason))
            self.flush()

    def revoke(self, error: NotAuthorized) -> None:
        """The client may not read any more what it has subscribed to."""
        if not self.closing:
            self.refuse(self._translate("SUB", error))
            self.flush()

    # --- permission ---------------------------------------------------------------------------------------------------

    def may(self, name: str, topic: bytes, channel: bytes = b"") -> bool:
        """Whether the client may do it now. False: its authorization has run out and is being asked for again, and the
        command must be read again after that. Raises CommandError."""
        authority = self.door.authority
        if authority is None:
            if self.door.settings.nsq_auth_required and not self.session.user:
                raise CommandError("E_AUTH_FIRST", f"AUTH required before {name}")
            return True
        if self.authorization is None:
            raise CommandError("E_AUTH_FIRST", f"AUTH required before {name}")
        if self.authorization.expires <= self.door.loop.time():
            self.hold_for(name, authority.renew(self))
            return False
        if not self.authorization.allows(topic.decode(), channel.decode()):
            raise CommandError("E_UNAUTHORIZED", f'AUTH failed for {name} on "{topic.decode()}" "{channel.decode()}"')
        return True

    # --- replies ------------------------------------------------------------------------------------------------------

    def reply(self, data: bytes) -> None:
        """Send a reply, behind those in line."""
        if self._pending:
            self._pending.append(publish.Pending(self, data))
        else:
            self._out.append(data)

    def refuse(self, error: CommandError) -> None:
        """Answer with an error; all but a few close the connection behind it."""
        self.door.errors.failed(error.nsq_code)
        log.debug("command refused", client=self.name, code=error.nsq_code, reason=str(error))
        self.reply(frames.error(error.nsq_code, str(error)))
        if error.fatal:
            self._held |= CLOSING
            subscribe.leave(self)

    def settled(self) -> None:
        """A reply in line is ready: all that are ready by the end of this turn go out in one write."""
        if not self._queued and not self._held & LOST:
            self._queued = True
            self.door.soon(self.flush_pending)

    def _send_replies(self, replies: list[Pending]) -> None:
        for entry in replies:
            self._out.append(entry.reply)
            if entry.fatal:
                self._pending.clear()
                self._held |= CLOSING
                subscribe.leave(self)
                break
        self.flush()

    def flush(self) -> None:
        """Write the replies that are ready, as one."""
        if self._out:
            data = self._out[0] if len(self._out) == 1 else b"".join(self._out)
            self._out.clear()
            self.write(data)
            if self._unread and self.transport.get_write_buffer_size() > REPLIES_MAX:
                self._held |= UNREAD
        if self._held & CLOSING:
            self._finish_closing()

    def write(self, data: bytes | bytearray) -> None:
        """Send bytes, packed where that was negotiated."""
        if not self._held & LOST and not self.transport.is_closing():
            self.transport.write(self._pack(data))
            if self._unread:
                self.note_unread()

    def note_unread(self) -> None:
        """Let the doors know what the client leaves unread."""
        waiting = self.transport.get_write_buffer_size() if self._unread else 0
        self.door.connections.note_unread(self, waiting)

    # --- the sink of a subscription -----------------------------------------------------------------------------------

    def deliver(self, claimed: Claimed) -> None:
        """Send messages."""
        stretch = loop_time.begin(self) if self.door.broker.quotas.is_active else None
        subscribe.deliver(self, claimed)
        if stretch is not None:
            stretch.end()

    def gone(self, reason: str) -> None:
        """The channel was deleted."""
        log.debug("subscriber closed", client=self.name, reason=reason)
        consumer, self.consumer = self.consumer, None
        if consumer is not None:
            self.door.topics.delete_unused(consumer.queue.topic)
        self.close()

    # --- what holds commands back -------------------------------------------------------------------------------------

    def hold_for(self, command: str, work: Coroutine[Any, Any, Any], *, patient: bool = False) -> None:
        """Do something that awaits for a command; others are handled after it. `patient`: it may take for ever."""
        self._command = command
        self._patient = patient
        self.run(loop_time.timed_work(self, work) if self.door.broker.quotas.is_active else work)

    def _ran(self) -> None:
        self.flush()
        self.release(BUSY)

    def release(self, reason: int) -> None:
        CompressedConnection.release(self, reason)
        if self._eof:
            self._end_if_done()

    # --- upgrades -----------------------------------------------------------------------------------------------------

    def stop_reading(self) -> None:
        """Leave the client's next bytes to the TLS transport."""
        self.transport.pause_reading()

    async def upgrade(self) -> None:
        """Speak TLS from here on. Reading must have been stopped before the client was answered."""
        assert self.door.tls is not None
        await self.start_tls(self.door.tls, HANDSHAKE_SECONDS)
        self.transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self.codec.tls_missing = False

    def watch(self) -> None:
        """Let heartbeats and deadlines be as the client wants them by now."""
        if not self._held & LOST:
            self._heartbeat.watch()

    @property
    def is_waiting(self) -> bool:
        """A command waits for something."""
        return bool(self._held & BUSY)

    @property
    def is_read_late(self) -> bool:
        """What the client sends now may not be read before something else has come."""
        return not self._reading or bool(self._held & BUSY)

    # --- closing ------------------------------------------------------------------------------------------------------

    @property
    def upgraded(self) -> bool:
        """The client speaks TLS or a compressed stream by now."""
        return self.encrypted or self.compressed

    @property
    def common_name(self) -> str:
        """Of the client's certificate; empty where it showed none."""
        certificate = self.transport.get_extra_info("peercert") or {}
        for part in certificate.get("subject", ()):
            for name, value in part:
                if name == "commonName":
                    return str(value)
        return ""

    def _end_if_done(self) -> bool:
        """Close, if the client has closed its side and everything that it sent is answered."""
        if self._pending or (self._held & (BUSY | FULL | UNREAD | TURN | DRAIN | MUTED) and not self._held & LOST):
            return False
        self.close()
        return True

    def _finish_closing(self) -> None:
        if not self._pending and self._task is None:
            self._linger()

    def _linger(self) -> None:
        """Close once the client has read why. Closing while its bytes still arrive would throw the reason away."""
        if self._held & LOST:
            return
        self._held |= LOST
        self._own = None
        if not self._eof and not self.identity.tls and self.transport.can_write_eof():
            self.transport.write_eof()
            self._heartbeat.abort_after(LINGER_SECONDS)
        else:
            self.transport.close()
            self._heartbeat.abort_after(CLOSE_SECONDS)

    def close(self) -> None:
        """Close at once, after what is written already."""
        if self._held & LOST:
            return
        self._held |= LOST
        self._own = None
        subscribe.leave(self)
        self.transport.close()
        self._heartbeat.abort_after(CLOSE_SECONDS)

    def close_when_idle(self) -> None:
        """Handle no further command, and close once those under way are answered."""
        if self._held & LOST:
            self.transport.close()
            return
        self._held |= CLOSING
        subscribe.leave(self)
        if not self._pending and (self._task is None or self._patient):
            self.close()
