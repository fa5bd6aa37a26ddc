"""Topics through Spark Connect: a batch read, and a named stream whose lag is printed after each batch.

    python connect.py sc://spark:15002 127.0.0.1:9092 orders CHECKPOINT

The client needs `pip install 'headrace[connect]'` and no Java. Source and sink run where the server runs: its Python
needs Headrace, and its address of the broker is the one that counts. Without a server, `local[2]` starts one here.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import DataFrame, SparkSession

from headrace.pipeline.progress import metrics


def count_records(spark: SparkSession, broker: dict[str, str], topic: str) -> int:
    return spark.read.format("headrace").options(**broker, subscribe=topic, columns="offset").load().count()


def copy(spark: SparkSession, broker: dict[str, str], topic: str, checkpoint: str) -> list[dict[str, object]]:
    """Copy what the topic has now, each record once; the name, the rows and the lag of each batch."""
    records: DataFrame = (
        spark.readStream.format("headrace").options(**broker, subscribe=topic, startingOffsets="earliest").load()
    )
    query = (
        records.select("key", "value")
        .writeStream.queryName(f"copy-{topic}")
        .format("headrace")
        .options(**broker, topic=f"{topic}-copy", applicationId=f"copy-{topic}", checkpointLocation=checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return [
        {"query": batch["name"], "rows": source["numInputRows"], **metrics(source)}
        for batch in query.recentProgress
        for source in batch["sources"]
    ]


def main() -> None:
    remote, bootstrap, topic, checkpoint = sys.argv[1:]
    spark = SparkSession.builder.remote(remote).getOrCreate()
    broker = {"kafka.bootstrap.servers": bootstrap}
    print(json.dumps({"records": count_records(spark, broker, topic)}))
    for batch in copy(spark, broker, topic, checkpoint):
        print(json.dumps(batch))
    spark.stop()


if __name__ == "__main__":
    main()
