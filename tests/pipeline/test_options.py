"""The source's options, without Spark."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headrace.client import EARLIEST, LATEST
from headrace.pipeline.broker import make_client
from headrace.pipeline.option_values import InvalidOption
from headrace.pipeline.options import parse, parse_sink, parse_values

BROKER = {"kafka.bootstrap.servers": "127.0.0.1:9092", "subscribe": "t"}


def test_what_is_not_said() -> None:
    batch = parse(BROKER, streaming=False)
    assert (batch.topics, batch.start.everywhere, batch.end.everywhere) == (("t",), EARLIEST, LATEST)
    assert (batch.committed, batch.fail_on_data_loss, batch.headers, batch.push_filters) == (True, True, False, False)
    assert parse(BROKER, streaming=True).start.everywhere == LATEST


def test_names_do_not_mind_their_case() -> None:
    assert parse({**BROKER, "STARTINGOFFSETS": "Latest"}, streaming=False).start.everywhere == LATEST


def test_the_more_particular_wins() -> None:
    said = {
        **BROKER,
        "startingOffsets": "latest",
        "startingTimestamp": "5",
        "startingOffsetsByTimestamp": '{"t": {"0": 7}}',
    }
    assert parse(said, streaming=False).start.time_by_partition == {("t", 0): 7}
    del said["startingOffsetsByTimestamp"]
    assert parse(said, streaming=False).start.time == 5


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"subscribe": "t"}, "give one of them, not none"),
        ({"kafka.bootstrap.servers": "x:1"}, "give one, not none"),
        ({**BROKER, "assign": "{}"}, "give one, not"),
        ({**BROKER, "subscribePattern": "x"}, "give one, not"),
        (
            {"kafka.bootstrap.servers": "x:1", "subscribePattern": "["},
            r"'\[' is not a regular expression: unterminated",
        ),
        ({**BROKER, "path": "/data"}, "give one of them, not both"),
        ({"path": "/data", "subscribe": "t", "kafka.group.id": "g"}, "kafka.group.id needs a broker"),
        ({**BROKER, "startingOffset": "latest"}, r"no option 'startingOffset' \(did you mean startingOffsets\?\)"),
        ({**BROKER, "startingOffsets": "first"}, "not JSON"),
        ({**BROKER, "startingOffsets": '{"t": 5}'}, "it is JSON like"),
        ({**BROKER, "endingOffsets": "earliest"}, "nothing would be read"),
        ({**BROKER, "minPartitions": "-1"}, "whole number"),
        ({**BROKER, "timeout": "0"}, "it is a whole number, 1 or more"),
        ({**BROKER, "startingTimestamp": "1" * 20}, "whole number"),
        ({**BROKER, "startingOffsets": '{"t": {"0": %s}}' % ("1" * 20)}, "it is JSON like"),
        ({**BROKER, "failOnDataLoss": "yes"}, "true or false"),
        ({**BROKER, "isolation": "dirty"}, "read_committed or read_uncommitted"),
        ({**BROKER, "startingOffsets": '{"t": {"0": -3}}'}, "it is JSON like"),
        ({**BROKER, "startingOffsetsByTimestamp": '{"t": {"0": -1}}'}, "it is JSON like"),
        ({"kafka.bootstrap.servers": "x:1", "assign": '{"t": []}'}, "it is JSON like"),
        ({**BROKER, "maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "6"}, "maxOffsetsPerTrigger is 5"),
        ({**BROKER, "maxTriggerDelay": "soon"}, "a time like"),
        ({**BROKER, "kafka.security.protocol": "KERBEROS"}, "one of plaintext, ssl, sasl_plaintext, sasl_ssl"),
        ({**BROKER, "kafka.security.protocol": "PLAINTEXT", "kafka.ssl.truststore.location": "ca"}, "says PLAINTEXT"),
        ({**BROKER, "kafka.ssl.truststore.type": "JKS"}, "one of pem"),
        ({**BROKER, "kafka.auto.offset.reset": "earliest"}, "no option 'kafka.auto.offset.reset'"),
    ],
)
def test_what_makes_no_sense_is_named(given: dict[str, str], reason: str) -> None:
    with pytest.raises(InvalidOption, match=reason):
        parse(given, streaming=False)


def test_what_only_tunes_another_client_is_taken() -> None:
    said = {"groupIdPrefix": "x", "fetchOffset.numRetries": "3", "kafka.max.poll.records": "5000"}
    assert parse({**BROKER, **said}, streaming=True) == parse(BROKER, streaming=True)
    to = {"kafka.bootstrap.servers": "x:1", "topic": "t"}
    assert parse_sink({**to, "kafka.acks": "all", "kafka.linger.ms": "5"}, streaming=False) == parse_sink(
        to, streaming=False
    )
    with pytest.raises(InvalidOption, match=r"the sink has no option 'kafka\.max\.poll\.records'"):
        parse_sink({**to, "kafka.max.poll.records": "5"}, streaming=False)


def test_encryption_is_said_by_its_name_or_by_its_files() -> None:
    assert not parse(BROKER, streaming=False).tls
    assert parse({**BROKER, "kafka.security.protocol": "SSL"}, streaming=False).tls
    assert parse({**BROKER, "kafka.ssl.truststore.location": "ca"}, streaming=False).tls


def test_files_for_encryption_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    (tmp_path / "ca").write_text("no certificate")
    for name in ("nowhere", "ca"):
        options = parse({**BROKER, "kafka.ssl.truststore.location": str(tmp_path / name)}, streaming=False)
        with pytest.raises(InvalidOption, match=f"{name} cannot be used for TLS: "):
            make_client(options)


def test_assigned_partitions_count_once() -> None:
    assigned = parse({"kafka.bootstrap.servers": "x:1", "assign": '{"t": [1, 0, 1]}'}, streaming=False)
    assert assigned.partitions == {"t": (0, 1)}


def test_a_table_is_refused_in_words() -> None:
    pytest.importorskip("pyspark")
    from headrace.pipeline.source import HeadraceSource

    # As Spark asks for the columns of CREATE TABLE; readers of the table would get no options at all.
    given = {**BROKER, "provider": "headrace", "option.subscribe": "t", "owner": "me"}
    with pytest.raises(InvalidOption, match="CREATE TEMPORARY VIEW"):
        HeadraceSource(given).schema()


def test_only_a_stream_may_write_all_of_its_rows_again(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyspark")
    from pyspark.sql.types import StringType, StructField, StructType

    from headrace.pipeline.sink import StreamWriter
    from headrace.pipeline.source import HeadraceSource

    monkeypatch.setattr(StreamWriter, "prepare", lambda _: None)
    sink = HeadraceSource({"kafka.bootstrap.servers": "x:1", "topic": "t", "applicationId": "a"})
    rows = StructType([StructField("value", StringType())])
    # As in the output mode complete.
    assert isinstance(sink.streamWriter(rows, overwrite=True), StreamWriter)
    with pytest.raises(InvalidOption, match="cannot be overwritten: use the mode append"):
        sink.writer(rows, overwrite=True)


def test_a_stream_has_no_end() -> None:
    with pytest.raises(InvalidOption, match="a stream has no end"):
        parse({**BROKER, "endingOffsets": "latest"}, streaming=True)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"valueFormat": "avro"}, "one of binary, json"),
        ({"schema": "a INT"}, "give valueFormat=json, too"),
        ({"valueFormat": "json", "schema": "a INT", "badRows": "ignore"}, "one of column, drop, fail"),
        ({"valueFormat": "json", "schema": "a INT", "valueColumns": "x"}, "one of flat, struct"),
        ({"columns": ""}, "columns cannot be ''"),
        ({"columns": "value,,key"}, "with commas between them"),
        ({"columns": "value, Value"}, "'Value' is there twice"),
    ],
)
def test_what_makes_no_sense_of_values_is_named(given: dict[str, str], reason: str) -> None:
    with pytest.raises(InvalidOption, match=reason):
        parse_values({**BROKER, **given})


def test_columns_by_name() -> None:
    assert parse_values(BROKER).columns == ()
    assert parse_values({**BROKER, "columns": " value ,timestamp"}).columns == ("value", "timestamp")
    assert parse_values({**BROKER, "columns": "`a, b`,c d"}).columns == ("a, b", "c d")


def test_a_process_that_plans_loads_no_codecs_and_no_producer() -> None:
    pytest.importorskip("pyspark")
    # What PySpark brings itself (numpy, pyarrow) is in that process anyway.
    code = (
        "import sys, headrace.pipeline.source, headrace.pipeline.readers, headrace.pipeline.broker; "
        "own = ('headrace.client.producer', 'headrace.client.transactional', 'headrace.client.consumer', "
        "'headrace.format.records', 'headrace.pipeline.range_reader', 'headrace.pipeline.sink', 'crc32c', 'structlog', "
        "'kio.serial'); sys.exit(' '.join(name for name in own if name in sys.modules) or None)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
