"""`sessions` with a real Spark: in order, exactly once, through a kill of the driver."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyarrow")

from tests.pipeline.jobs.questions import NOON, SECOND, Happened, disordered, histories, told
from tests.pipeline.test_sink import contents
from tests.pipeline.topics import Topics

from headrace.client import LATEST

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.pipeline.jobs import Sessions

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def said(topics: Topics, topic: str) -> list[tuple[str, dict[str, Any]]]:
    """Keys and values, in the order of each partition."""
    return [(record.key.decode(), json.loads(record.value or b"null")) for record in contents(topics, topic)]


def last(topics: Topics, topic: str) -> dict[str, dict[str, Any]]:
    return dict(said(topics, topic))


def fill(topics: Topics, topic: str, happened: list[Happened]) -> None:
    """Each question's events lie anywhere: their order is not that of a partition."""
    for partition in range(2):
        topics.fill(topic, [each.value for each in happened if each.sequence % 2 == partition], partition=partition)


def run(spark: SparkSession, topics: Topics, topic: str, to: str, checkpoint: Path, **more: Any) -> Sessions:
    from headrace.pipeline.jobs import sessions

    given: dict[str, Any] = {"lateness": 30, "idle": 300, "forget": None, **more}
    return sessions(spark, topics=[topic], bootstrap=topics.address, to=to, checkpoint=checkpoint, **given)


def end(topics: Topics, topic: str, at: int) -> None:
    """An event that takes the watermark to `at` and beyond."""
    topics.fill(topic, [Happened("last", "asked", at + 60 * SECOND, 1).value])


def check(topics: Topics, to: str, happened: list[Happened], idle: bool = False) -> None:
    """What was told is what happened, and nothing of it twice."""
    expected = told(happened)
    states = last(topics, f"{to}.state")
    states.pop("last", None)
    assert states.keys() == expected.keys()
    for name, question in expected.items():
        found = states[name]
        assert found.pop("first_answer_after") == question.first_answer_after
        assert found.pop("question") == name
        wanted = asdict(question)
        if idle and question.state in ("open", "answered"):
            wanted["state"] = "idle"
        assert found == wanted
    by_question: dict[str, list[int]] = defaultdict(list)
    for key, event in said(topics, f"{to}.events"):
        assert key == event["question"]
        by_question[key].append(event["sequence"])
    by_question.pop("last", None)
    assert by_question == {name: list(range(1, question.events + 1)) for name, question in expected.items()}
    counts = {state: each["questions"] for state, each in last(topics, f"{to}.counts").items() if each["questions"]}
    now = Counter(each["state"] for each in last(topics, f"{to}.state").values())
    assert counts == now


def test_events_in_any_order_are_told_in_theirs(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    topic, to = topics.create(2), "told"
    happened = histories(15, 1)
    arrived = disordered(happened, 2, 25 * SECOND)
    fill(topics, topic, arrived)
    topics.fill(topic, [b"{", b'{"question": "q"}', b'{"question": "q", "event": "burnt"}'])
    topics.fill(topic, [b'{"question": "q\xff", "event": "asked"}'])
    # One that came before: its producer had not heard.
    topics.fill(topic, [arrived[-1].value])
    end(topics, topic, NOON + 600 * SECOND)
    done = run(spark, topics, topic, to, tmp_path / "checkpoint")
    assert (done.events, done.late, done.broken, done.forgotten) == (len(arrived) + 6, 0, 5, 0)
    assert sum(done.states.values()) == 16
    check(topics, to, happened, idle=True)
    reasons = Counter(each["reason"] for _, each in said(topics, f"{to}.broken"))
    assert sorted(reasons) == [
        "it is not UTF-8",
        f"number {arrived[-1].sequence} of the question came before, or too late to be put in order",
        "there is no 'event' in it",
        "there is no 'question' in it",
        "there is no event 'burnt'. Use one of asked, answered, commented, voted, accepted, closed, reopened",
    ]
    ends = topics.ask(lambda client: client.admin.list_offsets(dict.fromkeys([(topic, 0), (topic, 1)], LATEST)))
    assert topics.committed(f"sessions-{to}") == {each: entry.offset for each, entry in ends.items()}
    assert topics.ask(lambda client: cleanup(client, f"{to}.state")) == "compact"


def kept(spark: SparkSession, checkpoint: Path) -> set[str]:
    """The questions of which there is state."""
    reader = spark.read.format("statestore").option("stateVarName", "story")
    return {row["key"]["question"] for row in reader.load(str(checkpoint / "questions")).collect()}


def test_what_is_silent_for_long_is_forgotten(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    topic, to, checkpoint = topics.create(), "forgotten", tmp_path / "checkpoint"

    def happen(*some: tuple[str, str, int]) -> None:
        values = [{"question": name, "event": what, "at": NOON + at * SECOND} for name, what, at in some]
        topics.fill(topic, [json.dumps(each).encode() for each in values])

    happen(("old", "asked", 0), ("old", "closed", 10), ("silent", "asked", 20), ("told", "asked", 1_900))
    happen(("young", "asked", 2_000))
    # One comes for it in time, which begins anew; two of long ago; and one that ends all that is there.
    happen(("old", "commented", 2_010), ("old", "voted", 5), ("told", "voted", 1_800), ("end", "asked", 9_000))
    # The first run ends before them.
    end = {"endingOffsets": json.dumps({topic: {"0": 5}})}
    first = run(spark, topics, topic, to, checkpoint, idle=300, forget=600, options=end)
    assert (first.events, first.forgotten) == (5, 2)
    assert {state: count for state, count in first.states.items() if count} == {"forgotten": 2, "open": 2}
    assert kept(spark, checkpoint) == {"told", "young"}
    states = last(topics, f"{to}.state")
    assert {name: (each["state"], each.get("forgotten")) for name, each in states.items()} == {
        "old": ("closed", NOON + 610 * SECOND),
        "silent": ("idle", NOON + 620 * SECOND),
        "told": ("open", None),
        "young": ("open", None),
    }
    waiting: list[int] = []
    second = run(
        spark, topics, topic, to, checkpoint, idle=300, forget=600, tombstones=True,
        options={"maxOffsetsPerTrigger": "3"}, progress=lambda done: waiting.append(done.lag),
    )  # fmt: skip
    assert (second.events, second.late, second.forgotten) == (4, 2, 3)
    # All four wait before Spark has read three of them in a batch, and then the last.
    assert (waiting[0], second.batches, second.lag) == (4, 2, 0)
    assert kept(spark, checkpoint) == {"end"}
    states = last(topics, f"{to}.state")
    assert (states["old"], states["told"], states["young"], states["end"]["state"]) == (None, None, None, "open")
    assert states["silent"]["state"] == "idle"
    late = {key: (each["event"], each["reason"]) for key, each in said(topics, f"{to}.late")}
    assert late.keys() == {"old", "told"}
    assert all(event == "voted" for event, _ in late.values())
    assert late["old"][1].endswith("nothing is known of the question")
    assert late["told"][1].endswith("behind the watermark, and the question has gone on")
    assert {state: count for state, count in second.states.items() if count} == {"forgotten": 5, "open": 1}
    told = [event["event"] for _, event in said(topics, f"{to}.events")]
    assert sorted(told) == ["asked", "asked", "asked", "asked", "closed", "commented"]


async def cleanup(client: Any, topic: str) -> str:
    return next(each.value for each in await client.admin.topic_config(topic) if each.name == "cleanup.policy")


@pytest.mark.long
def test_a_driver_that_is_killed_neither_loses_nor_repeats(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    topic, to = topics.create(2), "killed"
    happened = histories(20, 3)
    fill(topics, topic, disordered(happened, 4, 25 * SECOND))
    end(topics, topic, NOON + 600 * SECOND)
    checkpoint = tmp_path / "checkpoint"
    command = [
        sys.executable, "-m", "headrace.cli", "pipeline", "sessions", "--topics", topic, "--to", to,
        "--bootstrap", topics.address, "--checkpoint", str(checkpoint), "--lateness", "30s", "--idle", "5m",
        "--every", "10ms", "--option", "maxOffsetsPerTrigger=20", "--master", "local[2]",
        "--conf", "spark.sql.shuffle.partitions=2", "--conf", "spark.driver.memory=1g",
    ]  # fmt: skip
    with (tmp_path / "said").open("w+") as output:
        driver = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            waited = time.monotonic() + 300
            # The first batch is done: it is in the midst of the next.
            while not (checkpoint / "questions" / "commits" / "0").exists():
                assert time.monotonic() < waited, (tmp_path / "said").read_text()[-3_000:]
                assert driver.poll() is None, (tmp_path / "said").read_text()[-3_000:]
                time.sleep(0.1)
        finally:
            # Spark and its workers with it, in the midst of whatever they do.
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
    before = len(list((checkpoint / "questions" / "commits").glob("[0-9]*")))
    assert 0 < before < len(happened) // 20
    done = run(spark, topics, topic, to, checkpoint)
    assert done.late == 0
    check(topics, to, happened, idle=True)
