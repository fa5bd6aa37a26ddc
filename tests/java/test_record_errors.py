"""What Kafka's own producer says of bad records and of those beside them: the same as at Apache Kafka."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests import apache
from tests.clients.trio import make_topic
from tests.java.conftest import Java
from tests.serve_process import ServeProcess

pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]

PROGRAM = Path(__file__).with_name("RecordErrors.java")
COMPACTED = {"cleanup_policy": "compact"}
DATED = {"message_timestamp_before_max_ms": "3600000", "message_timestamp_after_max_ms": "3600000"}
CASES = {
    "keys": (COMPACTED, "good,keyless,good,keyless,good"),
    "key": (COMPACTED, "good,keyless,good"),
    "times": (DATED, "good,old,good,new,good"),
    "time": (DATED, "good,old,good"),
    "both": (COMPACTED | DATED, "keyless,old,good"),
    "good": (COMPACTED | DATED, "good,good"),
}


def test_the_producer_is_told_as_by_kafka(java: Java, broker: ServeProcess) -> None:
    with apache.running() as beside:
        for name, (config, records) in CASES.items():
            answers = []
            for address in (broker.kafka, beside):
                make_topic(address, name, **config)
                answers.append(java(str(PROGRAM), address, name, records).split())
            assert answers[0] == answers[1]
            assert len(answers[0]) == records.count(",") + 1
            assert ("stored" in answers[0]) is (name == "good")
