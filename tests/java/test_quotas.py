"""`kafka-configs` for the quotas of users, clients and addresses, and the producer's own performance tool under one."""

from __future__ import annotations

import re

import pytest
from tests.java.conftest import Java
from tests.serve_process import ServeProcess

pytestmark = [pytest.mark.java, pytest.mark.timeout(180)]

CONFIGS = "kafka.admin.ConfigCommand"


def test_kafka_configs_sets_shows_and_removes_quotas(java: Java, broker: ServeProcess) -> None:
    at = ("--bootstrap-server", broker.kafka)

    def alter(*words: str) -> str:
        return java(CONFIGS, *at, "--alter", *words)

    def describe(*words: str) -> list[str]:
        return [line for line in java(CONFIGS, *at, "--describe", *words).splitlines() if line.strip()]

    users = ("--entity-type", "users")
    clients = ("--entity-type", "clients")
    alter("--add-config", "producer_byte_rate=1024,consumer_byte_rate=2048", *users, "--entity-name", "ann")
    alter("--add-config", "request_percentage=12.5", *users, "--entity-name", "ann", *clients, "--entity-name", "web")
    alter("--add-config", "controller_mutation_rate=2.5", *users, "--entity-default")
    alter("--add-config", "producer_byte_rate=4096", *clients, "--entity-default")
    alter("--add-config", "connection_creation_rate=7", "--entity-type", "ips", "--entity-name", "10.0.0.1")

    (ann,) = describe(*users, "--entity-name", "ann")
    assert "user-principal 'ann'" in ann
    assert "producer_byte_rate=1024.0" in ann
    assert "consumer_byte_rate=2048.0" in ann
    (both,) = describe(*users, "--entity-name", "ann", *clients, "--entity-name", "web")
    assert "request_percentage=12.5" in both
    (default,) = describe(*users, "--entity-default")
    assert "controller_mutation_rate=2.5" in default
    (of_clients,) = describe(*clients)
    assert "default client-id" in of_clients
    assert "producer_byte_rate=4096.0" in of_clients
    (address,) = describe("--entity-type", "ips")
    assert "connection_creation_rate=7.0" in address

    alter("--delete-config", "producer_byte_rate", *users, "--entity-name", "ann")
    (ann,) = describe(*users, "--entity-name", "ann")
    assert "producer_byte_rate" not in ann
    alter("--delete-config", "producer_byte_rate", *clients, "--entity-default")
    assert describe(*clients) == []


def test_the_performance_tool_is_throttled(java: Java, broker: ServeProcess) -> None:
    entity = ("--entity-type", "clients", "--entity-name", "throttled")
    java(CONFIGS, "--bootstrap-server", broker.kafka, "--alter", "--add-config", "producer_byte_rate=100000", *entity)
    output = java(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", "throttled", "--num-records", "500", "--record-size", "1000", "--throughput", "-1"),
        *("--producer-props", f"bootstrap.servers={broker.kafka}", "client.id=throttled"),
        "--print-metrics",
    )
    # Half a megabyte at a tenth of it a second, but for a second's worth and the last request.
    (throttled,) = re.findall(r"produce-throttle-time-max:\{client-id=throttled\}\s*:\s*([\d.]+)", output)
    assert float(throttled) > 0
