"""Source, sink, and all jobs through a Spark Connect server.

    python -m tests.pipeline.through_connect MASTER BOOTSTRAP SOURCE SINK QUESTIONS FOLDER

It prints how many rows the source has, and what each job has made of them.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from headrace.pipeline.jobs import archive, audit, logs, replay, sessions
from headrace.pipeline.session import session


def main() -> None:
    from tests.pipeline.test_sink import pour
    from tests.pipeline.topics import Topics

    master, bootstrap, source, sink, questions, to = sys.argv[1:]
    folder = Path(to)
    spark = session("connect", master, {"spark.sql.shuffle.partitions": "2"})
    topics = Topics(bootstrap)
    pour(spark, topics, source, sink, folder / "checkpoint")
    archive(spark, to=folder / "archive", topics=[source], bootstrap=bootstrap)
    reader = spark.read.format("headrace").option("kafka.bootstrap.servers", bootstrap)
    counted = logs(spark, to=folder / "logs", topics=[source], bootstrap=bootstrap)
    fast = replay(spark, topics=[source], bootstrap=bootstrap, into=f"{source}-again", round_rows=200)
    half = {"into": f"{source}-half", "function": lambda records: records.where("offset % 2 = 0")}
    plan = replay(spark, topics=[source], bootstrap=bootstrap, **half)
    now = round(time.time() * 1_000)
    report = audit(spark, topics=[source], bootstrap=bootstrap, since=now - 3_600_000, until=now + 60_000)
    told = {"to": f"{questions}-told", "checkpoint": folder / "told", "lateness": 30, "idle": 300, "forget": None}
    followed = sessions(spark, topics=[questions], bootstrap=bootstrap, **told)
    found = {
        "source": reader.option("subscribe", source).load().count(),
        "logs": [counted.rows, counted.broken],
        "replay": [fast.written, fast.of, plan.written],
        "audit": report.topics[0].stored,
        "sessions": [followed.events, followed.late, followed.broken],
    }
    print(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main()
