from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from select import select

import pytest
from tests.cli.conftest import Cli
from tests.waiting import SECONDS

from headrace.cli.messages import InputInvalid
from headrace.cli.produce import pieces
from headrace.embedded import Broker


def test_lines_in_and_out(cli: Cli):
    assert cli("produce", "t", stdin=b"one\ntwo\nthree\n").code == 0
    assert cli("consume", "t").out == b"one\ntwo\nthree\n"


async def test_a_stream_that_is_closed_while_it_is_read():
    class Closed(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            raise ValueError("I/O operation on closed file.")

    with pytest.raises(InputInvalid, match="the input cannot be read: I/O operation on closed file"):
        await anext(pieces(Closed()))


def test_keys_and_headers(cli: Cli):
    cli("produce", "t", "--key-separator", ":", "--header", "a=1", "--header", "b=2", stdin=b"k:v\n")
    (message,) = (json.loads(line) for line in cli("consume", "t", "--format", "json").lines)
    assert (message["key"], message["value"]) == ("k", "v")
    assert message["headers"] == [{"name": "a", "value": "1"}, {"name": "b", "value": "2"}]
    assert cli("consume", "t", "--key-separator", "=").text == "k=v\n"
    cli("produce", "u", "--key", "same", stdin=b"1\n2\n")
    assert [json.loads(line)["key"] for line in cli("consume", "u", "--format", "json").lines] == ["same", "same"]


def test_the_same_key_goes_where_other_clients_put_it(cli: Cli, headrace_broker: Broker):
    from confluent_kafka import Producer

    cli("topic", "create", "t", "--partitions", 7)
    keys = [f"key-{number}" for number in range(50)]
    placed = {}
    producer = Producer({"bootstrap.servers": headrace_broker.kafka, "partitioner": "murmur2_random"})
    for key in keys:
        producer.produce("t", b"", key=key, on_delivery=lambda _, m: placed.update({m.key().decode(): m.partition()}))
    producer.flush(SECONDS)
    cli("produce", "t", "--key-separator", ":", stdin="".join(f"{key}:x\n" for key in keys).encode())
    ours = [json.loads(line) for line in cli("consume", "t", "--format", "json").lines]
    assert {each["key"]: each["partition"] for each in ours if each["value"] == "x"} == placed


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_compressions(cli: Cli, compression: str):
    lines = b"".join(b"line %d\n" % number for number in range(5_000))
    assert cli("produce", "t", "--compression", compression, stdin=lines).code == 0
    assert cli("consume", "t").out == lines


def test_a_file_and_json_copy_a_topic(cli: Cli, tmp_path: Path):
    cli("produce", "t", "--header", "h=1", "--key", "k", stdin=b"\xff\xfe\nplain\n")
    dump = tmp_path / "dump.json"
    dump.write_bytes(cli("consume", "t", "--format", "json").out)
    assert cli("produce", "copy", "--format", "json", "--file", dump).code == 0
    copies = [json.loads(line) for line in cli("consume", "copy", "--format", "json").lines]
    originals = [json.loads(line) for line in dump.read_text().splitlines()]
    assert [{**each, "topic": "t"} for each in copies] == originals


def test_raw(cli: Cli):
    blob = bytes(range(256)) * 3_000
    assert cli("produce", "t", "--format", "raw", stdin=blob).code == 0
    assert cli("consume", "t", "--format", "raw").out == blob


def test_from_to_count_partition(cli: Cli):
    cli("topic", "create", "t", "--partitions", 2)
    cli("produce", "t", "--partition", 0, stdin=b"a\nb\nc\nd\n")
    cli("produce", "t", "--partition", 1, stdin=b"x\ny\n")
    assert cli("consume", "t", "--partition", 0, "--from", 1, "--to", 3).out == b"b\nc\n"
    assert cli("consume", "t", "--partition", 0, "--count", 1).out == b"a\n"
    assert cli("consume", "t", "--from", "latest").out == b""
    assert sorted(cli("consume", "t", "--from", "-1h").lines) == ["a", "b", "c", "d", "x", "y"]
    assert cli("consume", "t", "--to", "-1h").out == b""
    assert cli("consume", "t", "--partition", 0, "--from", 99).code == 1


def test_a_group_remembers(cli: Cli):
    cli("produce", "t", stdin=b"a\nb\nc\n")
    assert cli("consume", "t", "--group", "g", "--count", 2).out == b"a\nb\n"
    assert cli("consume", "t", "--group", "g").out == b"c\n"
    assert cli("consume", "t", "--group", "g").out == b""
    assert cli("consume", "t", "--group", "g", "--from", "earliest").out == b"a\nb\nc\n"


def test_follow_waits_for_more_and_ctrl_c_ends_it_quietly(cli: Cli, headrace_broker: Broker):
    cli("produce", "t", stdin=b"first\n")
    command = [sys.executable, "-m", "headrace.cli", "consume", "t", "--follow", "--bootstrap", headrace_broker.kafka]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"first\n"
        cli("produce", "t", stdin=b"second\n")
        assert process.stdout.readline() == b"second\n"
        process.send_signal(2)
        out, err = process.communicate(timeout=SECONDS)
    assert (process.returncode, out, err) == (130, b"", b"")


def test_follow_goes_on_in_new_partitions(cli: Cli, headrace_broker: Broker):
    cli("produce", "t", stdin=b"first\n")
    command = [sys.executable, "-m", "headrace.cli", "consume", "t", "--follow", "--bootstrap", headrace_broker.kafka]
    with subprocess.Popen([*command, "--group", "g"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"first\n"
        cli("topic", "config", "t", "--partitions", 3)
        cli("produce", "t", "--partition", 2, stdin=b"second\n")
        try:
            assert select([process.stdout], [], [], SECONDS)[0]
            assert process.stdout.readline() == b"second\n"
        finally:
            process.send_signal(2)
            process.communicate(timeout=SECONDS)
    assert cli("consume", "t", "--group", "g").out == b""


def test_a_closed_pipe_ends_it_quietly(cli: Cli, headrace_broker: Broker):
    cli("produce", "t", stdin=b"x" * 100 + b"\n" * 50_000)
    command = f"{sys.executable} -m headrace.cli consume t --bootstrap {headrace_broker.kafka} | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, timeout=SECONDS, check=True)
    assert done.stdout == b"x" * 100 + b"\n"
    assert done.stderr == b""


def test_what_goes_wrong_is_one_line(cli: Cli):
    cli("produce", "t", stdin=b"a\n")
    for arguments, stdin, word in (
        (("produce", "t", "--header", "h"), b"a\n", "NAME=VALUE"),
        (("produce", "t", "--key-separator", ":"), b"a\n", "line 1"),
        (("produce", "t", "--format", "json"), b"a\n", "line 1"),
        (("produce", "t", "--partition", 9), b"a\n", "t-9"),
        (("produce", "t", "--file", "/nowhere"), b"", "/nowhere"),
        (("produce", "t", "--format", "raw"), bytes(2_000_000), "max.message.bytes"),
        (("consume", "nothing"), b"", "nothing"),
        (("consume", "t", "--from", "yesterday"), b"", "yesterday"),
        (("consume", "t", "--partition", 9), b"", "partition 9"),
    ):
        outcome = cli(*arguments, stdin=stdin)
        assert outcome.code == 1, (arguments, outcome)
        assert outcome.out == b""
        assert len(outcome.err.splitlines()) == 1, outcome.err
        assert word in outcome.err, outcome.err


def test_speed_is_that_of_batches_not_of_records(cli: Cli):
    lines = b"".join(b"%099d\n" % number for number in range(100_000))
    # The machine's time for others is not counted.
    begin = time.process_time()
    assert cli("produce", "t", stdin=lines).code == 0
    assert cli("consume", "t").out == lines
    assert time.process_time() - begin < SECONDS


@pytest.mark.parametrize(
    ("arguments", "lines", "said"),
    [
        (("--key-separator", ":"), b"a:1\nb:2\nnothing\nc:3\n", "line 3 has no key"),
        (("--format", "json"), b'{"value": "1"}\n\n{"value": "2"}\nno\n', "line 4 is not a JSON object"),
    ],
)
def test_what_stands_before_a_line_that_makes_no_sense_is_sent(
    cli: Cli, arguments: tuple[str, ...], lines: bytes, said: str
):
    done = cli("produce", "t", *arguments, stdin=lines)
    assert done.code == 1
    assert said in done.err
    assert "The messages before it are sent: 2" in done.err
    assert cli("consume", "t").out == b"1\n2\n"


def test_a_transaction_with_a_line_that_makes_no_sense_is_aborted(cli: Cli):
    done = cli("produce", "t", "--format", "json", "--transactional-id", "x", stdin=b'{"value": "1"}\nno\n')
    assert done.code == 1
    assert "The transaction is aborted" in done.err
    assert cli("consume", "t", "--committed").out == b""


def test_what_a_reader_did_not_take_is_not_committed(cli: Cli, headrace_broker: Broker):
    """Without a buffer of Python's own, a write into a pipe that is closed meanwhile says that a part was taken."""
    cli("produce", "t", stdin=b"".join(b"line %d\n" % number for number in range(30_000)))
    command = [
        sys.executable,
        "-m",
        "headrace.cli",
        "consume",
        "t",
        "--group",
        "g",
        "--bootstrap",
        headrace_broker.kafka,
    ]
    unbuffered = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=unbuffered) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"line 0\n"
        process.stdout.close()
        assert (process.wait(SECONDS), process.stderr.read()) == (1, b"")
    assert "there is no group 'g'" in cli("group", "describe", "g").err


def test_bytes_that_are_no_text_in_arguments(cli: Cli):
    """Python hands them over as lone surrogates."""
    assert cli("produce", "t", "--key", "\udcff", "--header", "h=\udcfe", stdin=b"x\n").code == 0
    (message,) = (json.loads(line) for line in cli("consume", "t", "--format", "json").lines)
    assert (message["key_base64"], message["headers"]) == ("/w==", [{"name": "h", "value_base64": "/g=="}])
    for arguments in (("t", "--header", "\udcff=x"), ("\udcff",)):
        refused = cli("produce", *arguments, stdin=b"x\n")
        assert refused.code == 1
        assert refused.err == "headrace: b'\\xff' is not UTF-8\n"
