"""Source, sink and `archive` through a Spark Connect server.

    python -m tests.pipeline.through_connect MASTER BOOTSTRAP SOURCE SINK FOLDER

It prints how many rows the source has.
"""

from __future__ import annotations

import sys
from pathlib import Path

from headrace.pipeline.jobs import archive
from headrace.pipeline.session import session


def main() -> None:
    from tests.pipeline.test_sink import pour
    from tests.pipeline.topics import Topics

    master, bootstrap, source, sink, to = sys.argv[1:]
    spark = session("connect", master, {"spark.sql.shuffle.partitions": "2"})
    topics = Topics(bootstrap)
    pour(spark, topics, source, sink, Path(to) / "checkpoint")
    archive(spark, to=Path(to) / "archive", topics=[source], bootstrap=bootstrap)
    reader = spark.read.format("headrace").option("kafka.bootstrap.servers", bootstrap)
    print(reader.option("subscribe", source).load().count())
    spark.stop()


if __name__ == "__main__":
    main()
