"""Orders of a topic as a streaming table, their totals as a materialized view, and large ones in a topic again.

Spark finds the order of the three by itself, runs each as a query of its own, and keeps their checkpoints.
"""

from __future__ import annotations

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import struct, to_json
from pyspark.sql.functions import sum as sum_of

spark = SparkSession.active()
broker = {"kafka.bootstrap.servers": spark.conf.get("spark.headrace.bootstrap", "127.0.0.1:9092")}
schema = "id BIGINT, customer STRING, amount DOUBLE"


@dp.table
def orders() -> DataFrame:
    """Every order once, and where it came from."""
    return (
        spark.readStream.format("headrace")
        .options(**broker, subscribe="orders", startingOffsets="earliest", valueFormat="json", schema=schema)
        .load()
    )


@dp.materialized_view
def totals() -> DataFrame:
    return spark.read.table("orders").groupBy("customer").agg(sum_of("amount").alias("amount"))


# Exactly once: the sink's transactions belong to this name.
dp.create_sink("large_orders", "headrace", {**broker, "topic": "large-orders", "applicationId": "large-orders"})


@dp.append_flow(target="large_orders")
def find_large_orders() -> DataFrame:
    rows = spark.readStream.table("orders").where("amount >= 100")
    return rows.select("key", to_json(struct("id", "customer", "amount")).alias("value"))
