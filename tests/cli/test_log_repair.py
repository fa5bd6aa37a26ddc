"""`headrace log repair` on a real broker's directory: damage, an offline partition, the repair, and real clients."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from tests.cli.conftest import Cli
from tests.serve_process import ServeProcess
from tests.waiting import SECONDS

import headrace
import headrace.errors
from headrace.sdk import App

# Ten of them fill a segment, which is as small as it may be.
VALUE = b"message %d, " + b"long" * 25_000


def create(address: str) -> None:
    topic = NewTopic("t", 1, 1, config={"segment.bytes": str(1 << 20)})
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([topic])["t"].result(20)


def produce(address: str, numbers: range) -> list[int]:
    """Each in a batch of its own; the offsets."""
    offsets: list[int] = []

    def delivered(error: KafkaError | None, message: Any) -> None:
        if error is not None:
            raise KafkaException(error)
        offsets.append(message.offset())

    producer = Producer(
        {"bootstrap.servers": address, "linger.ms": 0, "message.timeout.ms": 20_000, "batch.num.messages": 1}
    )
    for number in numbers:
        producer.produce("t", VALUE % number, on_delivery=delivered)
        producer.poll(0)
    assert producer.flush(30) == 0
    return sorted(offsets)


def consume(address: str, upto: int, offset: int = OFFSET_BEGINNING) -> dict[int, bytes]:
    """What a consumer gets until it is behind `upto`."""
    settings = {"bootstrap.servers": address, "group.id": "reader", "enable.partition.eof": True}
    consumer = Consumer({**settings, "auto.offset.reset": "error", "enable.auto.commit": False})
    consumer.assign([TopicPartition("t", 0, offset)])
    found: dict[int, bytes] = {}
    try:
        for _ in range(2_000):
            message = consumer.poll(10)
            assert message is not None, f"nothing comes; {len(found)} came"
            if message.error() is not None and message.error().code() == KafkaError._PARTITION_EOF:
                if message.offset() >= upto:
                    return found
            elif message.error() is not None:
                raise KafkaException(message.error())
            else:
                found[message.offset()] = message.value()
    finally:
        consumer.close()
    raise AssertionError(f"no end at {upto}")


def says_offline(serving: ServeProcess) -> bool:
    """Touches the partition, and looks at what metadata and metrics say of it."""
    consumer = Consumer({"bootstrap.servers": serving.kafka, "group.id": "g"})
    with pytest.raises(KafkaException):
        consumer.get_watermark_offsets(TopicPartition("t", 0), 1)
    consumer.close()
    admin = AdminClient({"bootstrap.servers": serving.kafka})
    partition = admin.list_topics("t", 10).topics["t"].partitions[0]
    assert partition.error.code() == KafkaError.LEADER_NOT_AVAILABLE
    with urllib.request.urlopen(f"http://{serving.addresses['http']}/metrics", timeout=SECONDS) as answer:
        return "headrace_offline_partitions 1.0" in answer.read().decode()


def segments(directory: Path) -> list[Path]:
    return sorted((directory / "t-0").glob("*.log"))


def contents(directory: Path) -> dict[str, bytes]:
    files = [path for path in directory.rglob("*") if path.is_file() and path.name != ".lock"]
    return {os.fspath(path): path.read_bytes() for path in files}


def lost(rows: list[dict[str, Any]]) -> set[int]:
    return {offset for row in rows if row["severity"] == "lost" for offset in range(row["first"], row["last"] + 1)}


def test_both_sides_of_what_is_lost_stay(cli: Cli, tmp_path: Path) -> None:
    data = tmp_path / "data"
    with ServeProcess(data, "--http", "127.0.0.1:0") as serving:
        create(serving.kafka)
        assert produce(serving.kafka, range(100)) == list(range(100))
        refused = cli("log", "repair", data)
        assert (refused.code, "is in use" in refused.err) == (1, True)
        serving.stop()
        assert "1 partitions need no repair" in cli("log", "repair", data).text

        files = segments(data)
        assert len(files) > 5
        files[2].unlink()
        flipped = bytearray(files[4].read_bytes())
        flipped[300_000] ^= 0x40
        files[4].write_bytes(flipped)
        serving.start()
        assert says_offline(serving)
        serving.kill()

        before = contents(data)
        shown = cli("log", "repair", data, "--json")
        assert shown.code == 1
        assert "nothing was changed" in shown.err
        assert contents(data) == before
        gone = lost(shown.json)
        first, behind = int(files[2].stem), int(files[3].stem)
        assert set(range(first, behind)) < gone
        assert len(gone) == behind - first + 1

        done = cli("log", "repair", data, "t-0", "--accept-loss")
        assert done.code == 0, done.err
        assert "repair/1" in done.text
        assert (data / "repair/1/t-0" / files[4].name).read_bytes() == flipped
        assert json.loads((data / "repair/1/report.json").read_text())[0]["partition"] == "t-0"
        assert cli("log", "repair", data, "--json").json == []
        assert cli("log", "verify", data).code == 0

        serving.start()
        expected = {number: VALUE % number for number in range(100) if number not in gone}
        assert consume(serving.kafka, 100) == expected
        # From inside of what is lost, too.
        inside = consume(serving.kafka, 100, first + 1)
        assert inside == {number: value for number, value in expected.items() if number > first}
        assert produce(serving.kafka, range(100, 110)) == list(range(100, 110))
        serving.stop()
        serving.start()
        assert consume(serving.kafka, 110) == expected | {number: VALUE % number for number in range(100, 110)}
        serving.stop()


def test_what_only_the_kept_journal_has_is_taken_from_there(cli: Cli, tmp_path: Path) -> None:
    data = tmp_path / "data"
    with ServeProcess(data, "--http", "127.0.0.1:0", "--checkpoint-ms", "600000") as serving:
        create(serving.kafka)
        produce(serving.kafka, range(60))
        serving.stop()
        serving.start()
        assert produce(serving.kafka, range(60, 90)) == list(range(60, 90))
        serving.kill()
        files = segments(data)
        files[0].unlink()
        # What was written behind the recovery point is in the journal, too.
        for path in files[1:]:
            if int(path.stem) >= 60:
                path.unlink()
        serving.start()
        assert says_offline(serving)
        serving.kill()
        assert list(data.glob("journal.kept-*"))

        done = cli("log", "repair", data, "--accept-loss", "--json")
        assert done.code == 0, done.err
        gone = lost(done.json)
        assert gone == set(range(int(files[1].stem)))
        serving.start()
        assert consume(serving.kafka, 90) == {number: VALUE % number for number in range(90) if number not in gone}
        assert produce(serving.kafka, range(90, 95)) == list(range(90, 95))
        serving.stop()


def test_names_that_are_not_there(cli: Cli, tmp_path: Path) -> None:
    data = tmp_path / "data"
    with ServeProcess(data) as serving:
        create(serving.kafka)
        serving.stop()
    assert "there is no topic or partition 'u-0'" in cli("log", "repair", data, "u-0").err
    assert cli("log", "repair", data, "t").code == 0


@pytest.mark.parametrize("kind", ["a line is damaged", "the head is damaged", "it is missing"])
def test_a_checkpoint_is_put_together_again(cli: Cli, tmp_path: Path, kind: str) -> None:
    data = tmp_path / "data"

    def fill(broker: headrace.Broker, numbers: range) -> None:
        for topic in ("t", "u"):
            lines = b"".join(b"%d\n" % number for number in numbers)
            assert cli("produce", topic, "--partition", 1, "--bootstrap", broker.kafka, stdin=lines).code == 0

    with headrace.Broker(data=data) as broker:
        for topic, setting in (("t", "retention.ms=12345678"), ("u", "max.message.bytes=50000")):
            cli("topic", "create", topic, "--partitions", 3, "--set", setting, "--bootstrap", broker.kafka)
        fill(broker, range(50))
    path = data / "checkpoint"
    crc, head, *lines = path.read_bytes().split(b"\n")
    if kind == "a line is damaged":
        lines = [line.replace(b'"config":{', b'"config"={') if b'"name":"t"' in line else line for line in lines]
        path.write_bytes(b"\n".join([crc, head, *lines]))
    elif kind == "the head is damaged":
        path.write_bytes(b"\n".join([crc, head.replace(b'"cluster_id"', b'"cluster_ie"'), *lines]))
    else:
        path.unlink()
    with pytest.raises(headrace.errors.HeadraceError, match="checkpoint"), headrace.Broker(data=data):
        pass

    shown = cli("log", "repair", data, "--json")
    assert shown.code == 1
    assert shown.json[0]["partition"] == "checkpoint"
    lost = [row["what"] for row in shown.json if row["what"].startswith("the configuration of")]
    assert [what.split()[3] for what in lost] == {
        "a line is damaged": ["t"], "the head is damaged": [], "it is missing": ["t", "u"],
    }[kind]  # fmt: skip
    done = cli("log", "repair", data, "--accept-loss")
    assert done.code == 0, done.err
    assert (data / "repair/1/checkpoint").exists() == (kind != "it is missing")

    with headrace.Broker(data=data) as broker:
        fill(broker, range(50, 60))
        for topic in ("t", "u"):
            read = cli("consume", topic, "--from", "earliest", "--bootstrap", broker.kafka)
            assert [int(line) for line in read.lines] == list(range(60))
        described = cli("topic", "describe", "u", "--bootstrap", broker.kafka, "--json").text
        assert ("50000" in described) == (kind != "it is missing")
    assert cli("log", "repair", data).code == 0


async def test_queues_and_committed_readers_cross_what_is_lost(cli: Cli, tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with headrace.Broker(data=data, http="127.0.0.1:0") as broker:
        for batch in range(3):
            lines = b"".join(b"%d\n" % number for number in range(batch * 20, batch * 20 + 20))
            done = await asyncio.to_thread(cli, "produce", "t", "--bootstrap", broker.kafka, stdin=lines)
            assert done.code == 0, done.err
    segment = data / "t-0" / f"{0:020d}.log"
    contents = bytearray(segment.read_bytes())
    # Behind the first batch: what its header holds of times, ids and a checksum may well read "30".
    contents[contents.index(b"30", contents.index(b"19"))] ^= 1
    segment.write_bytes(contents)
    assert cli("log", "repair", data, "--accept-loss").code == 0

    async with headrace.Broker(data=data, http="127.0.0.1:0") as broker:
        expected = [*range(20), *range(40, 60)]
        for url, group in ((broker.url, "queue"), (f"kafka://{broker.kafka}", "group")):
            app = App(group, url)
            found: list[int] = []

            @app.subscribe("t", replay=True)
            async def handle(raw: bytes, found: list[int] = found) -> None:
                found.append(int(raw))

            async with app, asyncio.timeout(SECONDS):
                while len(found) < len(expected):
                    await asyncio.sleep(0.01)
            assert sorted(found) == expected
        shown = await asyncio.to_thread(cli, "queue", "show", "t", "queue", "--http", broker.http, "--json")
        assert shown.json["depth"] == 0, shown.text


def test_a_reader_gets_what_stands_before_the_damage_and_is_told_where_it_is(cli: Cli, tmp_path: Path) -> None:
    data = tmp_path / "data"
    with ServeProcess(data) as broker:
        create(broker.kafka)
        assert produce(broker.kafka, range(5)) == list(range(5))
        broker.stop()
        log = data / "t-0" / f"{0:020d}.log"
        contents = bytearray(log.read_bytes())
        contents[3 * len(contents) // 5 + 500] ^= 1
        log.write_bytes(contents)
        broker.start()
        found = cli("consume", "t", "--bootstrap", broker.kafka, "--group", "g")
        assert (found.code, found.lines) == (1, [(VALUE % number).decode() for number in range(3)])
        assert "the batch of t-0 with offsets 3 to 3 is damaged" in found.err
        assert "--partition 0 --from 4 to continue behind it" in found.err
        behind = cli("consume", "t", "--bootstrap", broker.kafka, "--partition", "0", "--from", "4")
        assert (behind.code, behind.lines) == (0, [(VALUE % 4).decode()])
        # What was printed is committed.
        again = cli("consume", "t", "--bootstrap", broker.kafka, "--group", "g")
        assert (again.code, again.lines) == (1, [])


def test_a_journal_that_is_missing_is_refused_named_and_given_up(cli: Cli, tmp_path: Path) -> None:
    data = tmp_path / "data"
    with ServeProcess(data) as broker:
        create(broker.kafka)
        produce(broker.kafka, range(3))
        broker.stop()
        # A copy of a clean directory may leave out what is empty.
        (data / "journal").rmdir()
        broker.start()
        assert produce(broker.kafka, range(3, 5)) == [3, 4]
        broker.kill()
    shutil.rmtree(data / "journal")
    with pytest.raises(headrace.errors.DataDirectoryInvalid, match=r"'journal' is missing.*headrace log repair"):
        headrace.Broker(data=data).start()
    for command in ("verify", "repair"):
        found = cli("log", command, data)
        assert found.code == 1
        assert "is missing, and the last stop was not clean" in found.text
    assert cli("log", "repair", data, "--accept-loss").code == 0
    assert cli("log", "verify", data).code == 0
    with headrace.Broker(data=data) as again:
        assert list(consume(again.kafka, 3))[:3] == [0, 1, 2]
        assert produce(again.kafka, range(1))


def test_long_work_shows_on_a_terminal_how_far_it_is(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with headrace.Broker(data=tmp_path / "data") as broker:
        create(broker.kafka)
        produce(broker.kafka, range(2))
    (tmp_path / "data" / "t-0" / f"{0:020d}.log").unlink()
    monkeypatch.setattr(Console, "is_terminal", True)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    for arguments in (["verify"], ["repair"], ["repair", "--accept-loss"]):
        assert "partitions" in cli("log", arguments[0], tmp_path / "data", *arguments[1:]).err
