"""Topics, settings and the cluster, as three unchanged admin clients see them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import confluent_kafka
import kafka.errors
import pytest
from aiokafka import TopicPartition as AioPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.admin import NewPartitions as AioNewPartitions
from aiokafka.admin import NewTopic as AioNewTopic
from aiokafka.admin.config_resource import ConfigResource as AioResource
from aiokafka.admin.config_resource import ConfigResourceType as AioResourceType
from confluent_kafka import ElectionType, KafkaError, KafkaException, TopicCollection, TopicPartition, Uuid
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    ResourceType,
)
from kafka.admin import ConfigResource as PyResource
from kafka.admin import ConfigResourceType as PyResourceType
from kafka.admin import KafkaAdminClient
from kafka.admin import NewPartitions as PyNewPartitions
from kafka.admin import NewTopic as PyNewTopic
from kafka.structs import TopicPartition as PyPartition

from headrace.embedded import Broker


@pytest.fixture
def admin(headrace_broker: Broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": headrace_broker.kafka})


def results(futures: dict[Any, Any]) -> list[Any]:
    return [future.result(20) for future in futures.values()]


def refusal(futures: dict[Any, Any]) -> int:
    """The error code that a single request met."""
    (future,) = futures.values()
    with pytest.raises(KafkaException) as refused:
        future.result(20)
    error: KafkaError = refused.value.args[0]
    assert error.str()
    return int(error.code())


def fill(broker: Broker, topic: str, count: int = 10) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.kafka})
    for _ in range(count):
        producer.produce(topic, b"value", b"key", partition=0)
    assert producer.flush(20) == 0


# --- librdkafka -------------------------------------------------------------------------------------------------------


def test_librdkafka_topics(headrace_broker: Broker, admin: AdminClient) -> None:
    results(admin.create_topics([NewTopic("t", 2, 1, config={"retention.ms": "1000"})]))
    assert refusal(admin.create_topics([NewTopic("t", 2, 1)])) == KafkaError.TOPIC_ALREADY_EXISTS
    assert refusal(admin.create_topics([NewTopic("u", 2, 3)])) == KafkaError.INVALID_REPLICATION_FACTOR
    assert refusal(admin.create_topics([NewTopic("a b", 1, 1)])) == KafkaError.TOPIC_EXCEPTION
    bad = NewTopic("u", 1, 1, config={"retention.ms": "soon"})
    assert refusal(admin.create_topics([bad])) == KafkaError.INVALID_CONFIG
    by_hand = NewTopic("hand", 3, replica_assignment=[[0], [0], [0]])
    results(admin.create_topics([by_hand]))
    results(admin.create_topics([NewTopic("tried", 1, 1)], validate_only=True))

    listed = admin.list_topics(timeout=20)
    assert {name: len(topic.partitions) for name, topic in listed.topics.items()} == {"t": 2, "hand": 3}
    assert list(listed.brokers) == [0]
    assert listed.cluster_id

    (described,) = results(admin.describe_topics(TopicCollection(["t"]), include_authorized_operations=True))
    assert (described.name, described.is_internal, len(described.partitions)) == ("t", False, 2)
    assert isinstance(described.topic_id, Uuid)
    assert [partition.leader.id for partition in described.partitions] == [0, 0]
    assert len(described.authorized_operations) == 8

    results(admin.create_partitions([NewPartitions("t", 4)]))
    assert refusal(admin.create_partitions([NewPartitions("t", 1)])) == KafkaError.INVALID_PARTITIONS
    results(admin.create_partitions([NewPartitions("t", 9)], validate_only=True))
    assert len(admin.list_topics("t", timeout=20).topics["t"].partitions) == 4

    results(admin.delete_topics(["t"]))
    assert refusal(admin.delete_topics(["t"])) == KafkaError.UNKNOWN_TOPIC_OR_PART
    assert set(admin.list_topics(timeout=20).topics) == {"hand"}


def test_librdkafka_settings(headrace_broker: Broker, admin: AdminClient) -> None:
    results(admin.create_topics([NewTopic("t", 1, 1)]))
    resource = ConfigResource(ResourceType.TOPIC, "t")

    def described() -> dict[str, ConfigEntry]:
        (entries,) = results(admin.describe_configs([resource]))
        return dict(entries)

    entry = described()["retention.ms"]
    assert (entry.value, entry.source) == ("604800000", ConfigSource.DEFAULT_CONFIG.value)
    assert entry.is_default
    changes = [
        ConfigEntry("retention.ms", "5000", incremental_operation=AlterConfigOpType.SET),
        ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.APPEND),
    ]
    results(admin.incremental_alter_configs([ConfigResource(ResourceType.TOPIC, "t", incremental_configs=changes)]))
    assert described()["retention.ms"].value == "5000"
    assert described()["retention.ms"].source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    assert described()["cleanup.policy"].value == "delete,compact"
    replaced = ConfigResource(ResourceType.TOPIC, "t", set_config={"segment.ms": "7000"})
    # The call is on its way out, the API behind it is not: older clients replace settings so.
    with pytest.warns(DeprecationWarning, match="alter_configs has been deprecated"):
        results(admin.alter_configs([replaced]))
    assert described()["segment.ms"].value == "7000"
    assert described()["retention.ms"].value == "604800000"
    wrong = [ConfigEntry("retention.ms", "x", incremental_operation=AlterConfigOpType.SET)]
    refused = admin.incremental_alter_configs([ConfigResource(ResourceType.TOPIC, "t", incremental_configs=wrong)])
    assert refusal(refused) == KafkaError.INVALID_CONFIG

    (broker,) = results(admin.describe_configs([ConfigResource(ResourceType.BROKER, "0")]))
    assert broker["num.partitions"].value == "1"
    assert broker["num.partitions"].is_read_only
    unknown = admin.describe_configs([ConfigResource(ResourceType.TOPIC, "nope")])
    assert refusal(unknown) == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_librdkafka_records_and_cluster(headrace_broker: Broker, admin: AdminClient) -> None:
    results(admin.create_topics([NewTopic("t", 1, 1)]))
    fill(headrace_broker, "t")
    (deleted,) = results(admin.delete_records([TopicPartition("t", 0, 4)]))
    assert deleted.low_watermark == 4
    (deleted,) = results(admin.delete_records([TopicPartition("t", 0, confluent_kafka.OFFSET_END)]))
    assert deleted.low_watermark == 10
    assert refusal(admin.delete_records([TopicPartition("t", 0, 11)])) == KafkaError.OFFSET_OUT_OF_RANGE

    cluster = admin.describe_cluster(include_authorized_operations=True).result(20)
    assert [node.id for node in cluster.nodes] == [0]
    assert cluster.controller.id == 0
    assert cluster.authorized_operations

    elected = admin.elect_leaders(ElectionType.PREFERRED, [TopicPartition("t", 0)]).result(20)
    (error,) = elected.values()
    assert error.code() == KafkaError.ELECTION_NOT_NEEDED


def test_a_thousand_topics(headrace_broker: Broker, admin: AdminClient) -> None:
    names = [f"topic-{number:04}" for number in range(1000)]
    results(admin.create_topics([NewTopic(name, 2, 1) for name in names], request_timeout=60))
    listed = admin.list_topics(timeout=20).topics
    assert sorted(listed) == names
    assert all(len(topic.partitions) == 2 for topic in listed.values())
    results(admin.delete_topics(names, request_timeout=60))
    assert not admin.list_topics(timeout=20).topics


def test_many_clients_want_the_same_topic(headrace_broker: Broker) -> None:
    admins = [AdminClient({"bootstrap.servers": headrace_broker.kafka}) for _ in range(5)]
    futures = [admin.create_topics([NewTopic("t", 1, 1)])["t"] for admin in admins]
    errors = [future.exception(20) for future in futures]
    assert errors.count(None) == 1
    codes = {error.args[0].code() for error in errors if error is not None}
    assert codes == {KafkaError.TOPIC_ALREADY_EXISTS}


@pytest.mark.headrace(auto_create_topics=False)
def test_topics_are_not_made_by_naming_them(headrace_broker: Broker, admin: AdminClient) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": headrace_broker.kafka, "message.timeout.ms": 1000})
    failed: list[KafkaError | None] = []
    producer.produce("t", b"x", on_delivery=lambda error, message: failed.append(error))
    producer.flush(20)
    assert failed[0] is not None
    assert not admin.list_topics(timeout=20).topics


# --- kafka-python -----------------------------------------------------------------------------------------------------


@pytest.fixture
def py_admin(headrace_broker: Broker) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=headrace_broker.kafka)
    yield client
    client.close()


def test_kafka_python_topics(headrace_broker: Broker, py_admin: KafkaAdminClient) -> None:
    (made,) = py_admin.create_topics([PyNewTopic("t", 2, 1, topic_configs={"retention.ms": "1000"})])["topics"]
    assert (made["num_partitions"], made["replication_factor"]) == (2, 1)
    assert made["configs"]["retention.ms"]["value"] == "1000"
    with pytest.raises(kafka.errors.TopicAlreadyExistsError):
        py_admin.create_topics([PyNewTopic("t", 2, 1)])
    assert py_admin.list_topics() == ["t"]
    topic, unknown = py_admin.describe_topics(["t", "nope"])
    assert (topic["error_code"], topic["topic_id"], len(topic["partitions"])) == (0, made["topic_id"], 2)
    assert unknown["error_code"] == kafka.errors.UnknownTopicOrPartitionError.errno
    py_admin.create_partitions({"t": PyNewPartitions(3)})
    with pytest.raises(kafka.errors.InvalidPartitionsError):
        py_admin.create_partitions({"t": PyNewPartitions(1)})
    (paged,) = py_admin.describe_topic_partitions(["t"])["topics"]
    assert [partition["partition_index"] for partition in paged["partitions"]] == [0, 1, 2]
    py_admin.delete_topics(["t"])
    with pytest.raises(kafka.errors.UnknownTopicOrPartitionError):
        py_admin.delete_topics(["t"])


def test_kafka_python_settings_and_sizes(headrace_broker: Broker, py_admin: KafkaAdminClient) -> None:
    py_admin.create_topics([PyNewTopic("t", 1, 1)])
    assert py_admin.alter_configs([PyResource(PyResourceType.TOPIC, "t", {"segment.ms": "5000"})])
    entries = py_admin.describe_configs([PyResource(PyResourceType.TOPIC, "t")])["topic"]["t"]
    assert {name: entry["value"] for name, entry in entries.items()} == {"segment.ms": "5000"}
    assert entries["segment.ms"]["config_type"] == "LONG"
    py_admin.reset_configs([PyResource(PyResourceType.TOPIC, "t", {"segment.ms": None})])
    assert py_admin.describe_configs([PyResource(PyResourceType.TOPIC, "t")])["topic"]["t"] == {}

    fill(headrace_broker, "t")
    ((folder,),) = [broker["log_dirs"] for broker in py_admin.describe_log_dirs()]
    (topic,) = folder["topics"]
    assert topic["name"] == "t"
    assert topic["partitions"][0]["partition_size"] > 10
    trimmed = py_admin.delete_records({PyPartition("t", 0): 4})
    assert trimmed[PyPartition("t", 0)]["low_watermark"] == 4
    cluster = py_admin.describe_cluster()
    assert [broker["broker_id"] for broker in cluster["brokers"]] == [cluster["controller_id"]] == [0]


# --- aiokafka ---------------------------------------------------------------------------------------------------------


@pytest.fixture
async def aio_admin(headrace_broker: Broker) -> AsyncIterator[AIOKafkaAdminClient]:
    client = AIOKafkaAdminClient(bootstrap_servers=headrace_broker.kafka)
    await client.start()
    yield client
    await client.close()


async def test_aiokafka(headrace_broker: Broker, aio_admin: AIOKafkaAdminClient) -> None:
    made = await aio_admin.create_topics([AioNewTopic("t", 2, 1, topic_configs={"retention.ms": "1000"})])
    assert [each[1] for each in made.topic_errors] == [0]
    again = await aio_admin.create_topics([AioNewTopic("t", 2, 1)])
    assert [each[1] for each in again.topic_errors] == [KafkaError.TOPIC_ALREADY_EXISTS]
    assert await aio_admin.list_topics() == ["t"]
    (topic,) = await aio_admin.describe_topics(["t"])
    assert [partition["leader"] for partition in topic["partitions"]] == [0, 0]
    grown = await aio_admin.create_partitions({"t": AioNewPartitions(3)})
    assert [each[1] for each in grown.topic_errors] == [0]
    cluster = await aio_admin.describe_cluster()
    assert cluster["controller_id"] == 0

    await aio_admin.alter_configs([AioResource(AioResourceType.TOPIC, "t", {"segment.ms": "5000"})])
    asked = AioResource(AioResourceType.TOPIC, "t", {"segment.ms": None, "retention.ms": None})
    (reply,) = await aio_admin.describe_configs([asked])
    ((_, _, _, _, entries),) = reply.resources
    # AlterConfigs replaces: the retention that the topic was made with is gone.
    assert {entry[0]: entry[1] for entry in entries} == {"retention.ms": "604800000", "segment.ms": "5000"}

    await asyncio.to_thread(fill, headrace_broker, "t")
    trimmed = await aio_admin.delete_records({AioPartition("t", 0): RecordsToDelete(before_offset=4)})
    assert trimmed == {AioPartition("t", 0): 4}
    gone = await aio_admin.delete_topics(["t"])
    assert [each[1] for each in gone.topic_error_codes] == [0]
