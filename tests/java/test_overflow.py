"""Kafka's own producer on topics whose readers are slow."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.clients.trio import make_topic
from tests.java.conftest import SECONDS, Java
from tests.java.test_verifiable import TOOLS, consumer, events, records
from tests.serve_process import ServeProcess

pytestmark = [pytest.mark.java, pytest.mark.timeout(180)]

MESSAGES = 5_000


@pytest.mark.parametrize("idempotent", ["true", "false"])
def test_block_loses_and_repeats_nothing(java: Java, broker: ServeProcess, tmp_path: Path, idempotent: str) -> None:
    topic = f"blocked-{idempotent}"
    make_topic(broker.kafka, topic, overflow="block", overflow_lag="500", overflow_group=topic, overflow_block_ms="400")
    # The tool itself turns trying again off.
    config = tmp_path / "producer.properties"
    config.write_text(f"retries=1000000\nenable.idempotence={idempotent}\nbatch.size=2000\n")
    arguments = ("--topic", topic, "--max-messages", str(MESSAGES), "--throughput", "-1", "--acks", "-1")
    producing = java.start(
        f"{TOOLS}.VerifiableProducer",
        *("--bootstrap-server", broker.kafka, *arguments, "--command-config", str(config)),
    )
    # Java takes longer to start than a request may wait: the producer is told to try again before anybody reads.
    reading = consumer(java, broker, topic, topic, MESSAGES)
    with ThreadPoolExecutor(2) as both:
        # Both at once: a consumer whose words nobody takes stands still, and the producer with it.
        waiting = [both.submit(process.communicate, timeout=SECONDS) for process in (producing, reading)]
        produced, consumed = (events(each.result()[0].splitlines()) for each in waiting)
    (summary,) = (event for event in produced if event["name"] == "tool_data")
    assert (summary["sent"], summary["acked"]) == (MESSAGES, MESSAGES)
    read = records(consumed)
    assert sorted(value for _, _, value in read) == sorted(str(number) for number in range(MESSAGES))
    assert [offset for _, offset, _ in read] == list(range(MESSAGES))


def test_reject_is_an_error_of_its_own(java: Java, broker: ServeProcess) -> None:
    make_topic(broker.kafka, "rejected", overflow="reject", overflow_lag="5", overflow_group="nobody")
    arguments = ("--topic", "rejected", "--max-messages", "200", "--throughput", "50", "--acks", "-1")
    said = events(java(f"{TOOLS}.VerifiableProducer", "--bootstrap-server", broker.kafka, *arguments).splitlines())
    refused = [event for event in said if event["name"] == "producer_send_error"]
    taken = [event for event in said if event["name"] == "producer_send_success"]
    # A batch is taken or refused whole, and on a busy machine one holds many.
    assert 5 <= len(taken) < 200
    assert len(refused) == 200 - len(taken)
    assert {event["exception"].rpartition(".")[2] for event in refused} == {"PolicyViolationException"}
    assert "group 'nobody' is" in refused[0]["message"]
