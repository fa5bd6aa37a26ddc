"""kill -9 in a loop while a group pops over remoting and receives over gRPC: what was acknowledged does not come again
once that is durable, nothing else is lost, leases last over restarts, and stale handles settle no later attempt.

One thread does everything in turn, so what must hold is known at each step. What was answered before a `barrier` is
durable; what was answered after the last one may be undone by a kill, or not.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.doors.rocketmq.client import Raw
from tests.doors.rocketmq.grpc.test_receive import Consumer, handle_of
from tests.doors.rocketmq.test_pop import Popper, check_of
from tests.longer import seeds
from tests.serve_process import ServeProcess

from headrace.doors.rocketmq.codes import Code, Request
from headrace.doors.rocketmq.grpc.protocol import Code as GrpcCode
from headrace.doors.rocketmq.messages import StoredMessage

KILLS = 5
STEPS = 60
QUEUES = 3
TOPIC, GROUP = "t", "g"
FLUSH_MS = 5
FLAGS = ("--rocketmq", "127.0.0.1:0", "--rocketmq-grpc", "127.0.0.1:0", "--queue-flush-ms", str(FLUSH_MS))
# A lease of gRPC is no shorter, before it is changed.
GRPC_SECONDS = 10
DRAIN_SECONDS = 120


@dataclass(eq=False)
class Delivery:
    """A message that came, and what settles it."""

    body: bytes
    message: Any
    handle: str
    is_remoting: bool
    until_ms: int
    """Before then it comes to nobody else."""


@dataclass
class Known:
    """What is known of one message."""

    is_acknowledged: bool = False
    is_durable: bool = False
    """That it is acknowledged, or if it is not, the lease that it has."""
    current: Delivery | None = None
    """Whose handle counts; None: it may come at any time."""
    stale: list[Delivery] = field(default_factory=list)


class Campaign:
    """Sends, receives and settles by chance, and checks what comes."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.known: dict[bytes, Known] = {}
        self.sent = 0
        self.counts = dict.fromkeys(("again", "stale", "kept", "durable"), 0)

    def connect(self, serving: ServeProcess) -> None:
        self.raw = Raw(serving.addresses["rocketmq"])
        self.popper = Popper(self.raw, TOPIC, GROUP)
        self.consumer = Consumer(serving.addresses["rocketmq-grpc"], GROUP, TOPIC)

    def close(self) -> None:
        self.raw.close()
        self.consumer.raw.__exit__()

    # --- what clients do ---

    def send(self) -> None:
        bodies = [b"%d" % (self.sent + number) for number in range(4)]
        self.sent += len(bodies)
        opaques = [self.raw.send_message(TOPIC, body, queue=self.random.randrange(QUEUES)) for body in bodies]
        for body, opaque in zip(bodies, opaques, strict=True):
            assert self.raw.answer(opaque).code == Code.SUCCESS
            self.known[body] = Known()

    def pop(self) -> None:
        wanted_ms = self.random.choice((200, 1_500, 60_000))
        answer, found = self.popper.pop(maxMsgNums=self.random.randint(1, 8), invisibleTime=wanted_ms, wait_ms=50)
        until = int(answer.fields.get("popTime", 0)) + int(answer.fields.get("invisibleTime", 0))
        for each in found:
            self.came(Delivery(each.body, each, check_of(each), True, until))

    def receive(self) -> None:
        begin_ms = now_ms()
        _, found = self.consumer.receive(self.random.randint(1, 8), wait=0.05, invisible=GRPC_SECONDS)
        for each in found:
            self.came(Delivery(each.body, each, handle_of(each), False, begin_ms + 1_000 * GRPC_SECONDS))

    def came(self, delivery: Delivery) -> None:
        """A message was delivered: may it be?"""
        known = self.known.setdefault(delivery.body, Known())
        assert not (known.is_acknowledged and known.is_durable), f"{delivery.body!r} comes again"
        before = known.current
        if before is not None:
            is_over = now_ms() >= before.until_ms
            assert is_over or not known.is_durable, f"{delivery.body!r} comes {before.until_ms - now_ms()} ms too early"
            known.stale.append(before)
            self.counts["again"] += 1
        known.is_acknowledged = known.is_durable = False
        known.current = delivery

    def leased(self) -> list[Delivery]:
        """What may be settled: nobody else has it for a while, however slow this machine is."""
        found = [each.current for each in self.known.values() if each.current and not each.is_acknowledged]
        return [each for each in found if each.until_ms > now_ms() + 1_000]

    def acknowledge(self) -> None:
        for delivery in self.random.sample(some := self.leased(), min(len(some), 3)):
            if not delivery.is_remoting:
                (code,) = self.consumer.ack([delivery.message])
                assert self.is_right(delivery, code == GrpcCode.OK)
            elif self.change(delivery, 30_000):
                # A stale handle would be taken, too, so this one is made anew.
                assert self.popper.ack(delivery.message, delivery.handle) == Code.SUCCESS
            else:
                continue
            known = self.known[delivery.body]
            known.is_acknowledged, known.is_durable = True, False
            self.doubtful -= {delivery}

    def change(self, delivery: Delivery, invisible_ms: int) -> bool:
        """Give a lease another end; whether its handle was good."""
        known = self.known[delivery.body]
        if delivery.is_remoting:
            answer = self.popper.change(delivery.message, invisible_ms, delivery.handle)
            is_good = answer.code == Code.SUCCESS
            if is_good:
                known.stale.append(Delivery(**{**vars(delivery)}))
                lane_offset = delivery.handle.split(" ")
                times = [answer.fields[name] for name in ("popTime", "invisibleTime", "reviveQid")]
                delivery.handle = " ".join([lane_offset[0], *times, *lane_offset[4:]])
                delivery.until_ms = int(times[0]) + int(times[1])
        else:
            begin_ms = now_ms()
            code, handle = self.consumer.change(delivery.handle, invisible_ms / 1_000)
            is_good = code == GrpcCode.OK
            if is_good:
                known.stale.append(Delivery(**{**vars(delivery)}))
                delivery.handle, delivery.until_ms = handle, begin_ms + invisible_ms
                delivery.message.system_properties.receipt_handle = handle
        assert self.is_right(delivery, is_good)
        if is_good:
            known.is_durable = False
            self.doubtful -= {delivery}
        return is_good

    def is_right(self, delivery: Delivery, is_good: bool) -> bool:
        """Whether a handle that is current is good. Where a kill may have undone the lease it may be either."""
        known = self.known[delivery.body]
        if is_good or known.is_durable or known.current is not delivery:
            return is_good
        known.current = None
        return delivery in self.doubtful

    def change_some(self) -> None:
        for delivery in self.random.sample(some := self.leased(), min(len(some), 2)):
            self.change(delivery, self.random.choice((300, 5_000, 60_000)))

    def use_stale(self) -> None:
        """By handles of earlier attempts, and of leases that were changed: the broker must not take them."""
        some = [(known, each) for known in self.known.values() for each in known.stale]
        for known, delivery in self.random.sample(some, min(len(some), 4)):
            self.counts["stale"] += 1
            if delivery.is_remoting:
                assert self.popper.ack(delivery.message, delivery.handle) == Code.SUCCESS
                changed = self.popper.change(delivery.message, 1, delivery.handle)
                assert changed.code == Code.NO_MESSAGE
            else:
                assert self.consumer.change(delivery.handle, 1)[0] == GrpcCode.INVALID_RECEIPT_HANDLE
            known.stale.remove(delivery)

    doubtful: frozenset[Delivery] = frozenset()
    """Whose leases the last kill may have undone."""

    def barrier(self) -> None:
        """What was answered is on the disk now: the queue's state is written in the turn after `FLUSH_MS`, and what is
        answered after that is in the journal behind it."""
        position = {"consumerGroup": "other", "topic": TOPIC, "queueId": 0}
        for _ in range(2):
            time.sleep(3 * FLUSH_MS / 1_000)
            self.sent_barriers += 1
            assert (
                self.raw.ask(Request.UPDATE_CONSUMER_OFFSET, {**position, "commitOffset": self.sent_barriers}).code == 0
            )
        for known in self.known.values():
            # What a kill has put in doubt stays so.
            if known.current is not None and known.current not in self.doubtful:
                known.is_durable = True

    sent_barriers = 0

    # --- kills ---

    def step(self) -> None:
        actions = {self.send: 2, self.pop: 4, self.receive: 3, self.acknowledge: 5, self.change_some: 2}
        actions |= {self.use_stale: 2, self.barrier: 2}
        self.random.choices(list(actions), list(actions.values()))[0]()

    def ask_and_leave(self) -> None:
        """Acknowledge without waiting for an answer: it may count, or not."""
        for delivery in self.leased()[:4]:
            if delivery.is_remoting:
                fields = {"consumerGroup": GROUP, "topic": TOPIC, "extraInfo": delivery.handle}
                message: StoredMessage = delivery.message
                fields |= {"queueId": str(message.queue_id), "offset": str(message.queue_offset)}
                self.raw.send(Request.ACK_MESSAGE, fields)
                self.known[delivery.body].is_acknowledged = True
                self.known[delivery.body].is_durable = False

    def killed(self) -> None:
        """What was not durable is in doubt."""
        doubtful = set()
        for known in self.known.values():
            if known.is_durable:
                self.counts["durable" if known.is_acknowledged else "kept"] += 1
                continue
            # What made a handle stale may be undone with the rest.
            known.stale.clear()
            if known.is_acknowledged:
                # Both are right: that it comes again, and that it does not.
                known.current = None
            elif known.current is not None:
                doubtful.add(known.current)
        self.doubtful = frozenset(doubtful)

    def drain(self) -> None:
        """Receive until all is acknowledged, or may have been before a kill."""
        until = time.monotonic() + DRAIN_SECONDS
        for delivery in self.leased():
            self.change(delivery, 300)
        while self.left() and time.monotonic() < until:
            self.pop()
            self.receive()
            self.acknowledge()
        assert not self.left(), self.left()

    def left(self) -> list[bytes]:
        return [body for body, known in self.known.items() if not known.is_acknowledged]


def now_ms() -> int:
    return int(time.time() * 1_000)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", seeds(0, 6))
def test_pops_and_receives_through_kills(tmp_path: Path, seed: int) -> None:
    campaign = Campaign(seed)
    with ServeProcess(tmp_path / "data", *FLAGS) as serving:
        campaign.connect(serving)
        campaign.send()
        # However often a message comes again, it is not dead.
        settings = json.dumps({"groupName": GROUP, "retryMaxTimes": 10_000}).encode()
        assert campaign.raw.ask(Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, settings).code == Code.SUCCESS
        for _ in range(KILLS):
            for _ in range(campaign.random.randint(STEPS // 2, STEPS)):
                campaign.step()
            if campaign.random.random() < 0.5:
                campaign.barrier()
            campaign.ask_and_leave()
            serving.kill()
            campaign.close()
            campaign.killed()
            serving.start()
            campaign.connect(serving)
        campaign.drain()
        campaign.barrier()
        campaign.close()
        serving.kill()
        serving.start()
        campaign.connect(serving)
        campaign.pop()
        campaign.receive()
        campaign.close()
    assert min(campaign.counts.values()) > 0, campaign.counts
