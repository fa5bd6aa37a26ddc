"""What every door promises, as tests that a door inherits.

A door passes with an adapter, a test class of some 30 lines (`adapter.py` has what its client implements):

    class LineClient(Client):
        # One publisher's connection to `self.address`, made when it is first needed.
        def publish(self, topic, value, *, delay_ms=0, id=None): ...  # return once acknowledged, raise Refused
        def publish_all(self, topic, values): ...                     # several messages by one request
        def close(self): ...                                          # from any thread; a publish under way raises

    class TestLine(Conformance):
        door = "line"                           # its name in the line `ready`
        flags = ("--line", "127.0.0.1:0")       # how it is opened
        program = ("examples/line_door.py",)    # only if `headrace serve` does not have it
        client = LineClient
        errors = {"full": "FULL", "too large": "TOO_LARGE", "bad name": "BAD_TOPIC", "own topic": "BAD_TOPIC",
                  "not allowed": "NOT_ALLOWED"}     # to a client that has not shown who it is
        lacks = {"deduplication": "its lines have no ids", "queues": "it publishes only", ...}

`errors` are patterns of what the door says in its protocol's own terms. `lacks` says which of `CAPABILITIES` the door
does not have, and why: their tests are skipped with that reason. A door that neither has a capability nor declares the
lack of it fails. A door with queues also has a `Consumer`; `hello`, `idle_flags`, `idle_hello` and `greedy` say how a
client of its protocol misbehaves.

The broker is a process of its own, which all tests of a class share; those that kill it, stop it or bound it tighter
have another. What a door was given is looked at through Kafka's door and HTTP's, and in one test through NSQ's.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any, ClassVar
from uuid import uuid4

import pytest
from tests.clients.nsq.raw import Raw
from tests.doors.adapter import Client, Consumer, DoorRefused
from tests.doors.load import Load
from tests.doors.reference import GROUP, Reference
from tests.serve_process import ServeProcess
from tests.waiting import SECONDS, wait_until

CAPABILITIES = {
    "batches": "several messages by one request",
    "all or nothing": "a request of several messages is stored whole or not at all",
    "partitions": "a request to several partitions, each of which succeeds or fails alone",
    "delay": "a message that is for later",
    "deduplication": "a message with an id is stored once",
    "queues": "messages are delivered one by one, and settled or sent back",
    "idle": "a client that is silent is closed",
    "slow readers": "a client that asks and does not read is closed",
}
# What one door takes for a beginning is garbage to the others.
GARBAGE = (
    b"\0" * 4_096,
    b"\xff" * 4_096,
    b"\x7f\xff\xff\xff" + b"x" * 4_096,
    b"\0\0\0\x10\0\0\xff\xff" + b"y" * 64,
    b"GET / HTTP/9.9\r\nContent-Length: -1\r\n\r\n",
    b"  V2PUB t\n\xff\xff\xff\xff",
    b"\r\n" * 2_048,
    *(Random(seed).randbytes(20_000) for seed in range(3)),
)
LIMIT = 10_000
"""Of a topic whose messages must be small."""
FIRST_FLAGS = ("--nsq", "127.0.0.1:0", "--http", "127.0.0.1:0")


def _command(*words: object) -> None:
    """Run `headrace`."""
    line = (sys.executable, "-m", "headrace.cli", *map(str, words))
    done = subprocess.run(line, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr


class Conformance:
    """To be inherited by a test class for each door."""

    door: ClassVar[str]
    flags: ClassVar[tuple[str, ...]] = ()
    program: ClassVar[tuple[str, ...]] = ("-m", "headrace.cli")
    client: ClassVar[type[Client]]
    consumer: ClassVar[type[Consumer]] = Consumer
    errors: ClassVar[Mapping[str, str]]
    lacks: ClassVar[Mapping[str, str]] = {}
    hello: ClassVar[bytes] = b""
    """What a client says before it says anything else; garbage is sent after it, too."""
    idle_flags: ClassVar[tuple[str, ...]] = ()
    """Settings under which a silent client is soon closed."""
    idle_hello: ClassVar[bytes] = b""
    """What a client says that is silent thereafter."""

    def greedy(self, topic: str) -> bytes:
        """Requests whose answers are large: messages of a topic, or of its queue `q`, over and over."""
        raise NotImplementedError

    # --- the stage ---

    @pytest.fixture(scope="class")
    @classmethod
    def broker(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
        with cls.serving(tmp_path_factory.mktemp("door") / "data") as broker:
            yield broker

    @pytest.fixture(scope="class")
    @classmethod
    def reference(cls, broker: ServeProcess) -> Iterator[Reference]:
        with closing(Reference(broker)) as reference:
            yield reference

    @pytest.fixture
    def topic(self) -> str:
        return f"t-{uuid4().hex[:12]}"

    @pytest.fixture
    def publisher(self, broker: ServeProcess) -> Iterator[Client]:
        with self.publishing(broker) as publisher:
            yield publisher

    @classmethod
    def serving(cls, data: Path, *more: str) -> ServeProcess:
        return ServeProcess(data, *FIRST_FLAGS, *cls.flags, *more, program=cls.program)

    @contextmanager
    def publishing(self, broker: ServeProcess) -> Iterator[Client]:
        publisher = self.client(broker.addresses[self.door])
        try:
            yield publisher
        finally:
            publisher.close()

    @contextmanager
    def consuming(self, broker: ServeProcess, topic: str, queue: str = "q") -> Iterator[Consumer]:
        consumer = self.consumer(broker.addresses[self.door], topic, queue)
        try:
            yield consumer
        finally:
            consumer.close()

    def needs(self, *capabilities: str) -> None:
        for each in capabilities:
            if each in self.lacks:
                pytest.skip(f"the {self.door} door lacks {each!r}: {self.lacks[each]}")

    def has(self, capability: str) -> bool:
        return capability not in self.lacks

    def refuses(self, what: str) -> Any:
        return pytest.raises(DoorRefused, match=self.errors[what])

    def test_every_capability_is_there_or_declared(self) -> None:
        assert set(self.lacks) <= set(CAPABILITIES)
        assert all(self.lacks.values()), "a lack needs its reason"
        there = {
            "batches": self.client.publish_all is not Client.publish_all,
            "partitions": self.client.publish_to is not Client.publish_to,
            "queues": self.consumer is not Consumer,
            "idle": bool(self.idle_flags or self.idle_hello),
            "slow readers": type(self).greedy is not Conformance.greedy,
        }
        assert there == {each: each not in self.lacks for each in there}
        assert self.has("batches") or not self.has("all or nothing")

    # --- publishing ---

    def test_what_is_published_is_read_through_other_doors(
        self, broker: ServeProcess, reference: Reference, publisher: Client, topic: str
    ) -> None:
        reference.make_topic(topic)
        values = [b"plain", bytes(range(256)), "ü".encode() * 100, b"x" * 9_000]
        for value in values:
            publisher.publish(topic, value)
        if self.has("batches"):
            publisher.publish_all(topic, [b"one", b"two", b"three"])
            values += [b"one", b"two", b"three"]
        assert reference.values(topic) == values
        with closing(Raw(broker.addresses["nsq"])) as nsq:
            nsq.subscribe(topic, "all", len(values))
            assert [nsq.delivery().body for _ in values] == values

    def test_a_topic_is_made_by_its_first_message(self, reference: Reference, publisher: Client, topic: str) -> None:
        publisher.publish(topic, b"first")
        assert reference.values(topic) == [b"first"]

    def test_messages_of_one_publisher_stay_in_order(
        self, broker: ServeProcess, reference: Reference, topic: str
    ) -> None:
        reference.make_topic(topic)
        address = broker.addresses[self.door]
        loads = {name: Load(self.client(address), topic, self.has("batches"), name) for name in ("one", "two")}
        for load in loads.values():
            load.wait()
        for load in loads.values():
            load.end()
        found = reference.values(topic)
        for name, load in loads.items():
            load.check([each for each in found if each.startswith(name.encode())], self.has("all or nothing"))
        assert len(found) == sum(len(request) for load in loads.values() for request in load.tried)

    def test_a_message_that_is_too_large_is_refused_alone(
        self, reference: Reference, publisher: Client, topic: str
    ) -> None:
        reference.make_topic(topic, max_message_bytes=LIMIT)
        publisher.publish(topic, b"before")
        with self.refuses("too large"):
            publisher.publish(topic, b"x" * 2 * LIMIT)
        publisher.publish(topic, b"after")
        assert reference.values(topic) == [b"before", b"after"]

    def test_a_publish_takes_a_right_as_long_as_there_is_one(self, tmp_path: Path) -> None:
        """What the client may not write is refused in the protocol's own terms, whether it is there or not; a right
        that is revoked is none, also for a client that has used it."""
        data, password = tmp_path / "data", tmp_path / "password"
        password.touch(0o600)
        password.write_text("a long secret\n")
        _command("user", "create", "admin", "--role", "admin", "--password-file", password, "--data", data)
        _command("acl", "grant", "ANONYMOUS", "write,create", "topic", "mine", "--data", data)
        _command("acl", "grant", "ANONYMOUS", "describe,create", "topic", "seen", "--data", data)
        with self.serving(data, "--authorization", "on") as broker, self.publishing(broker) as publisher:
            publisher.publish("mine", b"one")
            for name in ("other", "seen"):
                with self.publishing(broker) as another, self.refuses("not allowed"):
                    another.publish(name, b"x")
            admin = ("--user", "admin", "--password-file", password, "--http", broker.addresses["http"])
            _command("acl", "revoke", "ANONYMOUS", "write", "topic", "mine", *admin)
            with self.refuses("not allowed"):
                publisher.publish("mine", b"two")

    @pytest.mark.parametrize("name", ["bad$name", "x" * 250])
    def test_a_name_that_no_topic_can_have_is_refused(
        self, reference: Reference, publisher: Client, topic: str, name: str
    ) -> None:
        before = reference.topics()
        with self.refuses("bad name"):
            publisher.publish(name, b"x")
        assert reference.topics() == before
        publisher.publish(topic, b"x")

    @pytest.mark.parametrize("name", ["__consumer_offsets", "__queues"])
    def test_the_brokers_own_topics_are_refused(
        self, reference: Reference, publisher: Client, topic: str, name: str
    ) -> None:
        reference.make_topic(topic)
        reference.ask("PUT", f"/v1/topics/{topic}/queues/q", {})
        reference.read_up_to(topic, 0)
        with self.refuses("own topic"):
            publisher.publish(name, b"x")
        assert b"x" not in reference.values(name)

    def test_a_batch_is_stored_whole_or_not_at_all(self, reference: Reference, publisher: Client, topic: str) -> None:
        self.needs("all or nothing")
        reference.make_topic(topic, max_message_bytes=LIMIT)
        with self.refuses("too large"):
            publisher.publish_all(topic, [b"small", b"x" * 2 * LIMIT, b"small"])
        assert reference.values(topic) == []
        publisher.publish_all(topic, [b"one", b"two"])
        assert reference.values(topic) == [b"one", b"two"]

    def test_partitions_fail_alone(self, reference: Reference, publisher: Client, topic: str) -> None:
        self.needs("partitions")
        reference.make_topic(topic, 3, max_message_bytes=LIMIT)
        failed = publisher.publish_to(topic, {0: b"zero", 1: b"x" * 2 * LIMIT, 2: b"two"})
        assert list(failed) == [1]
        with self.refuses("too large"):
            raise DoorRefused(failed[1])
        assert reference.values(topic) == [b"zero", b"two"]

    # --- later, and once ---

    def test_a_message_for_later_is_never_early(self, reference: Reference, publisher: Client, topic: str) -> None:
        self.needs("delay")
        reference.make_topic(topic, delay="true")
        began = time.time()
        publisher.publish(topic, b"later", delay_ms=700)
        assert reference.ask("GET", f"/v1/timers?topic={topic}")["pending"] >= 1 or time.time() > began + 0.7
        publisher.publish(topic, b"now")
        found = reference.values(topic, 1)
        assert b"later" not in found or time.time() >= began + 0.7
        found = reference.values(topic, 2)
        assert time.time() >= began + 0.7
        assert sorted(found) == [b"later", b"now"]

    def test_an_id_is_stored_once_through_all_doors(self, reference: Reference, publisher: Client, topic: str) -> None:
        self.needs("deduplication")
        reference.make_topic(topic, deduplication_window_ms=600_000)
        publisher.publish(topic, b"one", id="a")
        publisher.publish(topic, b"one again", id="a")
        publisher.publish(topic, b"two", id="b")
        publisher.publish(topic, b"three")
        publisher.publish(topic, b"three")
        assert reference.ask("POST", f"/topics/{topic}?dedup_id=a")["duplicate"] is True
        reference.ask("POST", f"/topics/{topic}?dedup_id=c")
        publisher.publish(topic, b"four", id="c")
        assert reference.values(topic) == [b"one", b"two", b"three", b"three", b""]

    # --- too fast a publisher ---

    def test_spill_takes_everything(self, reference: Reference, publisher: Client, topic: str) -> None:
        reference.make_topic(topic, overflow="spill", overflow_lag=3, overflow_group=GROUP)
        for number in range(10):
            publisher.publish(topic, b"%d" % number)
        assert len(reference.values(topic)) == 10

    def test_reject_refuses_until_readers_are_further(
        self, reference: Reference, publisher: Client, topic: str
    ) -> None:
        reference.make_topic(topic, overflow="reject", overflow_lag=3, overflow_group=GROUP)
        for number in range(3):
            publisher.publish(topic, b"%d" % number)
        for _ in range(2):
            with self.refuses("full"):
                publisher.publish(topic, b"too many")
        reference.read_up_to(topic, 1)
        publisher.publish(topic, b"3")
        with self.refuses("full"):
            publisher.publish(topic, b"too many")
        assert reference.values(topic) == [b"0", b"1", b"2", b"3"]

    def test_block_lets_one_publisher_wait_and_no_other(
        self, broker: ServeProcess, reference: Reference, publisher: Client, topic: str
    ) -> None:
        reference.make_topic(topic, overflow="block", overflow_lag=2, overflow_group=GROUP, overflow_block_ms=120_000)
        reference.make_topic(f"{topic}-other")
        publisher.publish(topic, b"0")
        publisher.publish(topic, b"1")
        waiting = threading.Thread(target=publisher.publish, args=(topic, b"2"), daemon=True)
        waiting.start()
        wait_until(lambda: reference.metric("headrace_topic_blocked_requests", topic=topic) == 1)
        with self.publishing(broker) as other:
            other.publish(f"{topic}-other", b"meanwhile")
        assert waiting.is_alive()
        assert reference.values(topic) == [b"0", b"1"]
        reference.read_up_to(topic, 1)
        waiting.join(SECONDS)
        assert not waiting.is_alive(), "it waits on though readers are further"
        assert reference.values(topic) == [b"0", b"1", b"2"]

    def test_drop_oldest_keeps_the_newest(self, reference: Reference, publisher: Client, topic: str) -> None:
        reference.make_topic(topic, overflow="drop-oldest", overflow_bytes=65_536)
        values = [b"%05d" % number * 1_000 for number in range(40)]
        for value in values:
            publisher.publish(topic, value)
        found = reference.values(topic)
        assert found == values[-len(found) :]
        assert 5 <= len(found) <= 13

    # --- queues ---

    def test_consumers_share_a_queue_and_settle_it(
        self, broker: ServeProcess, reference: Reference, publisher: Client, topic: str
    ) -> None:
        self.needs("queues")
        reference.make_topic(topic)
        publisher.publish(topic, b"own")
        reference.publish(topic, b"other")
        with self.consuming(broker, topic) as one, self.consuming(broker, topic) as two:
            first, second = one.take(), two.take()
            assert {first.value, second.value} == {b"own", b"other"}
            assert (first.attempt, second.attempt) == (1, 1)
            one.finish(first)
            two.finish(second)
            figures: dict[str, Any] = {}

            def settled() -> bool:
                figures.update(reference.queue(topic, "q"))
                return (figures["depth"], figures["in_flight"], figures["finished"]) == (0, 0, 2)

            wait_until(settled, lambda: figures)

    def test_a_message_sent_back_comes_again(self, broker: ServeProcess, reference: Reference, topic: str) -> None:
        self.needs("queues")
        reference.make_topic(topic)
        reference.publish(topic, b"again")
        with self.consuming(broker, topic) as consumer:
            consumer.requeue(consumer.take())
            second = consumer.take()
            assert (second.value, second.attempt) == (b"again", 2)
        # What a consumer had not settled when it left is delivered to the next.
        with self.consuming(broker, topic) as consumer:
            third = consumer.take()
            assert (third.value, third.attempt) == (b"again", 3)
            consumer.finish(third)
            wait_until(lambda: reference.queue(topic, "q")["finished"] == 1)

    def test_attempts_end_in_the_dead_letters(self, broker: ServeProcess, reference: Reference, topic: str) -> None:
        self.needs("queues")
        reference.make_topic(topic)
        reference.ask("PUT", f"/v1/topics/{topic}/queues/q", {"settings": {"max_attempts": 2}})
        reference.publish(topic, b"poison", b"fine")
        with self.consuming(broker, topic) as consumer:
            # In whichever order: what comes again takes turns with what is new.
            for _ in range(3):
                delivery = consumer.take()
                if delivery.value == b"poison":
                    assert delivery.attempt <= 2, "it is delivered for ever"
                    consumer.requeue(delivery)
                else:
                    consumer.finish(delivery)
        dead = f"{topic}.q.dead"
        wait_until(lambda: dead in reference.topics())
        assert reference.values(dead, 1) == [b"poison"]
        (letter,) = reference.messages(dead)
        headers = dict(letter.headers() or [])
        assert headers["headrace-origin-topic"] == topic.encode()
        assert headers["headrace-origin-queue"] == b"q"
        assert headers["headrace-attempts"] == b"2"

    # --- the end of a broker ---

    def test_what_was_acknowledged_survives_a_kill(self, tmp_path: Path, topic: str) -> None:
        self._end_under_load(tmp_path, topic, ServeProcess.kill)

    def test_a_stop_under_load_loses_nothing_and_leaves_nothing_to_recover(self, tmp_path: Path, topic: str) -> None:
        self._end_under_load(tmp_path, topic, ServeProcess.stop)

    def _end_under_load(self, tmp_path: Path, topic: str, end: Callable[[ServeProcess], None]) -> None:
        with self.serving(tmp_path / "data") as broker, closing(Reference(broker)) as reference:
            reference.make_topic(topic)
            load = Load(self.client(broker.addresses[self.door]), topic, self.has("batches"))
            load.wait()
            end(broker)
            load.abandon()
            broker.start()
            load.check(reference.values(topic), self.has("all or nothing"))
            assert ('"recovered"' in broker.words()) == (end is ServeProcess.kill)

    # --- clients that misbehave ---

    def test_garbage_hurts_its_sender_alone(self, broker: ServeProcess, reference: Reference, topic: str) -> None:
        reference.make_topic(topic)
        count = 0
        with self.publishing(broker) as steady:
            steady.publish(topic, b"x")
            for hello in {b"", self.hello}:
                for garbage in GARBAGE:
                    # A client that connects again by itself would not notice that it was cut off.
                    with self._connect(broker) as bystander:
                        self._send_garbage(broker, hello + garbage)
                        steady.publish(topic, b"x")
                        assert is_open(bystander), f"a bystander was closed for {hello + garbage[:100]!r}"
                    count += 1
        with self.publishing(broker) as fresh:
            fresh.publish(topic, b"x")
        assert len(reference.values(topic)) == count + 2

    def _connect(self, broker: ServeProcess) -> socket.socket:
        host, _, port = broker.addresses[self.door].rpartition(":")
        return socket.create_connection((host, int(port)), timeout=SECONDS)

    def _send_garbage(self, broker: ServeProcess, garbage: bytes) -> None:
        with self._connect(broker) as sock, suppress(ConnectionError):
            sock.sendall(garbage)
            with suppress(OSError):
                # It may be closed already.
                sock.shutdown(socket.SHUT_WR)
            while sock.recv(65_536):
                pass

    def test_a_silent_client_is_closed(self, tmp_path: Path) -> None:
        self.needs("idle")
        with (
            self.serving(tmp_path / "data", *self.idle_flags) as broker,
            self._connect(broker) as sock,
            suppress(ConnectionError),
        ):
            sock.sendall(self.idle_hello)
            while sock.recv(65_536):
                pass

    def test_clients_that_do_not_read_are_closed_and_others_served(self, tmp_path: Path, topic: str) -> None:
        self.needs("slow readers")
        with (
            self.serving(tmp_path / "data", "--unread-max-bytes", "1048576") as broker,
            closing(Reference(broker)) as reference,
            self.publishing(broker) as publisher,
        ):
            # In memory: ranges of files that wait to be sent take no room.
            reference.make_topic(topic, durability="memory")
            reference.ask("PUT", f"/v1/topics/{topic}/queues/q", {})
            for _ in range(80):
                publisher.publish(topic, b"x" * 400_000)
            lazy: list[socket.socket] = []
            try:

                def ask_on() -> None:
                    if len(lazy) < 64:
                        lazy.append(lazy_socket(broker.addresses[self.door]))
                        lazy[-1].send(self.greedy(topic))
                    time.sleep(0.01)

                name = "headrace_connections_unread_total"
                wait_until(lambda: reference.metric(name, door=self.door) >= 1, turn=ask_on)
                publisher.publish(topic, b"still served")
            finally:
                for each in lazy:
                    each.close()


def is_open(sock: socket.socket) -> bool:
    """Whether the other side has not closed a connection on which it has nothing to send."""
    sock.setblocking(False)
    try:
        return bool(sock.recv(1))
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


def lazy_socket(address: str) -> socket.socket:
    """A client whose side has little room, and that never reads."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    host, _, port = address.rpartition(":")
    made.connect((host, int(port)))
    made.setblocking(False)
    return made
