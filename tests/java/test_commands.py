"""The command-line tools that come with Kafka."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.java.conftest import Java
from tests.serve_process import ServeProcess

pytestmark = [pytest.mark.java, pytest.mark.timeout(180)]

TOOLS = "org.apache.kafka.tools"
TOPICS = f"{TOOLS}.TopicCommand"
GROUPS = f"{TOOLS}.consumer.group.ConsumerGroupCommand"
CONFIGS = "kafka.admin.ConfigCommand"
OFFSETS = f"{TOOLS}.GetOffsetShell"


def numbers(first: int, last: int) -> str:
    return "".join(f"{number}\n" for number in range(first, last + 1))


def test_topics(java: Java, broker: ServeProcess) -> None:
    def topics(*arguments: str) -> str:
        return java(TOPICS, "--bootstrap-server", broker.kafka, *arguments)

    made = ("--topic", "rivers", "--partitions", "3", "--config", "retention.ms=3600000")
    assert "Created topic rivers." in topics("--create", *made)
    described = topics("--describe", "--topic", "rivers").splitlines()
    assert "PartitionCount: 3" in described[0]
    assert "retention.ms=3600000" in described[0]
    assert [line.split("\t")[2] for line in described[1:]] == ["Partition: 0", "Partition: 1", "Partition: 2"]
    topics("--alter", "--topic", "rivers", "--partitions", "5")
    assert "PartitionCount: 5" in topics("--describe", "--topic", "rivers")
    assert "rivers" in topics("--list").splitlines()
    topics("--delete", "--topic", "rivers")
    assert "rivers" not in topics("--list").splitlines()


def test_settings_of_topics_and_brokers(java: Java, broker: ServeProcess) -> None:
    def topic_configs(*arguments: str) -> str:
        entity = ("--entity-type", "topics", "--entity-name", "lakes")
        return java(CONFIGS, "--bootstrap-server", broker.kafka, *entity, *arguments)

    java(TOPICS, "--bootstrap-server", broker.kafka, "--create", "--topic", "lakes")
    topic_configs("--alter", "--add-config", "max.message.bytes=2000000,cleanup.policy=compact")
    said = topic_configs("--describe")
    assert "max.message.bytes=2000000" in said
    assert "DYNAMIC_TOPIC_CONFIG:cleanup.policy=compact" in said
    topic_configs("--alter", "--delete-config", "max.message.bytes")
    assert "max.message.bytes" not in topic_configs("--describe")
    every = topic_configs("--describe", "--all")
    assert "segment.bytes=" in every
    of_broker = ("--entity-type", "brokers", "--entity-name", "0", "--describe", "--all")
    assert "message.max.bytes=" in java(CONFIGS, "--bootstrap-server", broker.kafka, *of_broker)


def test_settings_that_change_while_the_broker_runs(java: Java, broker: ServeProcess) -> None:
    def configs(*arguments: str) -> str:
        return java(CONFIGS, "--bootstrap-server", broker.kafka, *arguments)

    group = ("--entity-type", "groups", "--entity-name", "anglers")
    configs(*group, "--alter", "--add-config", "consumer.session.timeout.ms=50000,consumer.heartbeat.interval.ms=3000")
    said = configs(*group, "--describe")
    assert "consumer.session.timeout.ms=50000" in said
    assert "DYNAMIC_GROUP_CONFIG:consumer.session.timeout.ms=50000" in said
    assert "anglers" in configs("--entity-type", "groups", "--describe")
    configs(*group, "--alter", "--delete-config", "consumer.session.timeout.ms")
    assert "consumer.session.timeout.ms=45000" in configs(*group, "--describe", "--all")

    everywhere = ("--entity-type", "brokers", "--entity-default")
    here = ("--entity-type", "brokers", "--entity-name", "0")
    configs(*everywhere, "--alter", "--add-config", "log.retention.ms=7200000")
    configs(*here, "--alter", "--add-config", "log.retention.ms=3600000")
    assert "log.retention.ms=7200000" in configs(*everywhere, "--describe")
    said = configs(*here, "--describe")
    assert "DYNAMIC_BROKER_CONFIG:log.retention.ms=3600000" in said
    assert "DYNAMIC_DEFAULT_BROKER_CONFIG:log.retention.ms=7200000" in said
    configs(*here, "--alter", "--delete-config", "log.retention.ms")
    configs(*everywhere, "--alter", "--delete-config", "log.retention.ms")
    assert "log.retention.ms" not in configs(*everywhere, "--describe")


def test_the_quorum_and_client_metrics(java: Java, broker: ServeProcess) -> None:
    quorum = "org.apache.kafka.tools.MetadataQuorumCommand"
    said = java(quorum, "--bootstrap-server", broker.kafka, "describe", "--status")
    assert re.search(r"LeaderId:\s+0\b", said)
    assert re.search(r"CurrentVoters:\s+\[.*\b0\b", said)
    replicas = java(quorum, "--bootstrap-server", broker.kafka, "describe", "--replication").splitlines()
    assert [line.split()[-1] for line in replicas[1:] if line.strip()] == ["Leader"]
    metrics = "org.apache.kafka.tools.ClientMetricsCommand"
    assert java(metrics, "--bootstrap-server", broker.kafka, "--list").strip() == ""


def test_console_producer_and_consumer_with_keys_and_headers(java: Java, broker: ServeProcess) -> None:
    given = "".join(f"origin:spring\t{number}\tdrop {number}\n" for number in range(200))
    properties = ("--reader-property", "parse.key=true", "--reader-property", "parse.headers=true")
    arguments = ("--topic", "console", *properties, "--compression-codec", "zstd")
    java(f"{TOOLS}.ConsoleProducer", "--bootstrap-server", broker.kafka, *arguments, given=given)
    shown = [("print.key", "true"), ("print.headers", "true"), ("print.offset", "true")]
    asked = [word for name, value in shown for word in ("--formatter-property", f"{name}={value}")]
    said = java(
        f"{TOOLS}.consumer.ConsoleConsumer",
        *("--bootstrap-server", broker.kafka, "--topic", "console", "--from-beginning", "--max-messages", "200"),
        *("--timeout-ms", "30000", *asked),
    )
    lines = [line for line in said.splitlines() if line.startswith("Offset:")]
    assert lines == [f"Offset:{number}\torigin:spring\t{number}\tdrop {number}" for number in range(200)]


def test_groups_are_listed_described_and_reset(java: Java, broker: ServeProcess) -> None:
    def groups(*arguments: str) -> str:
        return java(GROUPS, "--bootstrap-server", broker.kafka, *arguments)

    def offsets() -> dict[str, list[str]]:
        lines = [line.split() for line in groups("--describe", "--group", "anglers").splitlines()]
        return {line[1]: line[3:6] for line in lines if line[:1] == ["anglers"]}

    server = ("--bootstrap-server", broker.kafka, "--topic", "fish")
    java(f"{TOOLS}.ConsoleProducer", *server, given=numbers(1, 50))
    java(
        f"{TOOLS}.consumer.ConsoleConsumer",
        *(*server, "--group", "anglers", "--from-beginning", "--max-messages", "30", "--timeout-ms", "30000"),
    )
    assert "anglers" in groups("--list").splitlines()
    assert "Empty" in groups("--describe", "--group", "anglers", "--state")
    assert offsets() == {"fish": ["30", "50", "20"]}
    groups("--group", "anglers", "--topic", "fish", "--reset-offsets", "--to-offset", "10", "--execute")
    assert offsets() == {"fish": ["10", "50", "40"]}
    groups("--group", "anglers", "--topic", "fish", "--reset-offsets", "--to-latest", "--execute")
    assert offsets() == {"fish": ["50", "50", "0"]}
    long_ago = ("--to-datetime", "2020-01-01T00:00:00.000")
    groups("--group", "anglers", "--topic", "fish", "--reset-offsets", *long_ago, "--execute")
    assert offsets() == {"fish": ["0", "50", "50"]}
    assert "Successful" in groups("--group", "anglers", "--delete-offsets", "--topic", "fish")
    assert offsets() == {}
    groups("--group", "anglers", "--delete")
    assert "anglers" not in groups("--list").splitlines()


def test_offsets_and_deleted_records(java: Java, broker: ServeProcess, tmp_path: Path) -> None:
    def offsets(when: str) -> list[str]:
        return java(OFFSETS, "--bootstrap-server", broker.kafka, "--topic", "ponds", "--time", when).split()

    java(f"{TOOLS}.ConsoleProducer", "--bootstrap-server", broker.kafka, "--topic", "ponds", given=numbers(1, 50))
    assert offsets("latest") == ["ponds:0:50"]
    assert offsets("earliest") == ["ponds:0:0"]
    assert offsets("1") == ["ponds:0:0"]
    (newest,) = offsets("max-timestamp")
    assert 0 <= int(newest.rpartition(":")[2]) < 50
    request = tmp_path / "delete.json"
    request.write_text(json.dumps({"version": 1, "partitions": [{"topic": "ponds", "partition": 0, "offset": 20}]}))
    arguments = ("--bootstrap-server", broker.kafka, "--offset-json-file", str(request))
    assert "low_watermark: 20" in java(f"{TOOLS}.DeleteRecordsCommand", *arguments)
    assert offsets("earliest") == ["ponds:0:20"]


def test_log_dirs(java: Java, broker: ServeProcess) -> None:
    java(f"{TOOLS}.ConsoleProducer", "--bootstrap-server", broker.kafka, "--topic", "wells", given=numbers(1, 50))
    arguments = ("--bootstrap-server", broker.kafka, "--describe", "--topic-list", "wells")
    said = json.loads(java(f"{TOOLS}.LogDirsCommand", *arguments).splitlines()[-1])
    (folder,) = said["brokers"][0]["logDirs"]
    assert folder["error"] is None
    assert folder["logDir"] == str(broker.data)
    (partition,) = folder["partitions"]
    assert partition["partition"] == "wells-0"
    assert partition["size"] > 0
    assert partition["offsetLag"] == 0


def test_api_versions_and_cluster_id(java: Java, broker: ServeProcess) -> None:
    said = java(f"{TOOLS}.BrokerApiVersionsCommand", "--bootstrap-server", broker.kafka)
    assert f"{broker.kafka} (id: 0" in said
    assert "Fetch(1): 4 to 18 [usable: 18]" in said
    assert "Cluster ID: " in java(f"{TOOLS}.ClusterTool", "cluster-id", "--bootstrap-server", broker.kafka)


def test_electing_the_only_replica_is_not_needed(java: Java, broker: ServeProcess) -> None:
    java(TOPICS, "--bootstrap-server", broker.kafka, "--create", "--topic", "elected")
    server = ("--bootstrap-server", broker.kafka)
    asked = ("--election-type", "preferred", "--topic", "elected", "--partition", "0")
    assert "already elected" in java(f"{TOOLS}.LeaderElectionCommand", *server, *asked)


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_performance_tools(java: Java, broker: ServeProcess, compression: str) -> None:
    topic = f"performance-{compression}"
    server = ("--bootstrap-server", broker.kafka)
    load = ("--topic", topic, "--num-records", "50000", "--record-size", "200", "--throughput", "-1")
    properties = ("--command-property", f"compression.type={compression}")
    said = java(f"{TOOLS}.ProducerPerformance", *load, *server, *properties)
    assert "50000 records sent" in said
    said = java(f"{TOOLS}.ConsumerPerformance", *server, "--topic", topic, "--num-records", "50000")
    assert said.splitlines()[-1].split(", ")[4] == "50000"


def test_end_to_end_latency(java: Java, broker: ServeProcess) -> None:
    arguments = ("--topic", "latency", "--num-records", "200", "--producer-acks", "all", "--record-size", "100")
    said = java(f"{TOOLS}.EndToEndLatency", "--bootstrap-server", broker.kafka, *arguments)
    assert "Avg latency" in said
