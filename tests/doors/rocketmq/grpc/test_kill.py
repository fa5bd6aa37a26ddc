"""What was answered is there after a kill: prepared messages, messages for later, and what was not settled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.doors.rocketmq.client import Raw
from tests.doors.rocketmq.grpc.client import RawGrpc, Resource, message
from tests.doors.rocketmq.grpc.test_receive import Consumer, handle_of
from tests.doors.rocketmq.grpc.test_send import end, in_seconds, read_all
from tests.serve_process import ServeProcess
from tests.waiting import wait_until

from headrace.doors.rocketmq.grpc.protocol import Code, definition


def test_transactions_and_delays_outlive_a_kill(tmp_path: Path) -> None:
    any_port = "127.0.0.1:0"
    flags = ("--rocketmq", any_port, "--rocketmq-grpc", any_port)
    times = ("--half-timeout-ms", "500", "--half-check-interval-ms", "500")
    with ServeProcess(tmp_path / "data", *flags, *times) as serving:
        with RawGrpc(serving.addresses["rocketmq-grpc"]) as client:
            kept = client.send("t", message("t", b"kept", definition.TRANSACTION)).entries[0].transaction_id
            orphan = client.send("t", message("t", b"orphan", definition.TRANSACTION)).entries[0].transaction_id
            due = message("t", b"due", definition.DELAY, delivery_timestamp=in_seconds(3))
            far = message("t", b"far", definition.DELAY, delivery_timestamp=in_seconds(60))
            client.send("t", due)
            handle = client.send("t", far).entries[0].recall_handle
        serving.kill()
        serving.start()
        with RawGrpc(serving.addresses["rocketmq-grpc"]) as other, Raw(serving.addresses["rocketmq"]) as raw:
            assert end(other, "t", kept, definition.COMMIT) == Code.OK
            asked = other.be_producer("t").next().recover_orphaned_transaction_command
            assert (asked.transaction_id, asked.message.body) == (orphan, b"orphan")
            assert end(other, "t", orphan, definition.ROLLBACK) == Code.OK
            recalled = other.ask("RecallMessage", topic=Resource(name="t"), recall_handle=handle)
            assert recalled.message_id == far.system_properties.message_id
            wait_until(lambda: len(read_all(raw, "t")) == 2)
            assert {each.body for each in read_all(raw, "t")} == {b"kept", b"due"}


def test_leases_outlive_a_kill_and_a_stop(tmp_path: Path) -> None:
    group = "g" * 100
    with ServeProcess(tmp_path / "data", "--rocketmq-grpc", "127.0.0.1:0", "--queue-flush-ms", "1") as serving:
        first = Consumer(serving.addresses["rocketmq-grpc"], group, "t")
        with first.raw:
            for body in (b"settled", b"left", b"other"):
                first.raw.send("t", body)
            found: dict[bytes, Any] = {}

            def receive() -> bool:
                found.update({each.body: each for each in first.receive(wait=0.2, invisible=3_600)[1]})
                return len(found) == 3

            wait_until(receive)
            assert first.ack([found[b"settled"]]) == [Code.OK]
            # What was received and settled is written a little later than it is answered.
            first.raw.send("t", b"last")
            wait_until(lambda: first.bodies(wait=0.2) == [b"last"])
            serving.kill()
        serving.start()
        second = Consumer(serving.addresses["rocketmq-grpc"], group, "t")
        with second.raw:
            again = {each.body for each in second.receive(wait=0.5)[1]}
            assert not again & {b"left", b"other"}
            assert second.ack([found[b"left"]]) == [Code.OK]
            code, shorter = second.change(handle_of(found[b"other"]), 3_000)
            assert code == Code.OK
            serving.stop()
        serving.start()
        third = Consumer(serving.addresses["rocketmq-grpc"], group, "t")
        with third.raw:
            assert third.receive(wait=0.5)[1] == []
            assert third.change(handle_of(found[b"other"]), 0)[0] == Code.INVALID_RECEIPT_HANDLE
            assert third.change(shorter, 0)[0] == Code.OK
            (other,) = third.receive()[1]
            assert (other.body, other.system_properties.delivery_attempt) == (b"other", 2)
            assert third.ack([other]) == [Code.OK]
