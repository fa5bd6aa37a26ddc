"""The totals of one day's orders, for `spark-submit`: the same day again gives the same files.

    spark-submit daily_totals.py --bootstrap 127.0.0.1:9092 --day 2026-11-17 --to /srv/totals

It reads the offsets of the day, not what has come since the last run: there is no state but the result. The last line
of standard output is a summary in JSON; the exit code is 0, or 1 where the day is not over.
"""

from __future__ import annotations

import argparse
import json
import sys
from datetime import UTC, date, datetime, timedelta

from pyspark.sql import SparkSession

SCHEMA = "id BIGINT, customer STRING, amount DOUBLE"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", default="orders")
    parser.add_argument("--day", type=date.fromisoformat, required=True, help="in UTC")
    parser.add_argument("--to", required=True)
    flags = parser.parse_args()
    begin = datetime.combine(flags.day, datetime.min.time(), UTC)
    end = begin + timedelta(days=1)
    if end > datetime.now(UTC):
        print(f"{flags.day} is not over. Give an earlier day.", file=sys.stderr)
        return 1
    spark = SparkSession.builder.appName(f"totals of {flags.day}").getOrCreate()
    orders = (
        spark.read.format("headrace")
        .options(valueFormat="json", schema=SCHEMA, subscribe=flags.topic)
        .option("kafka.bootstrap.servers", flags.bootstrap)
        .option("startingTimestamp", int(begin.timestamp() * 1000))
        .option("endingTimestamp", int(end.timestamp() * 1000))
        .load()
    )
    totals = orders.where("id IS NOT NULL").groupBy("customer").sum("amount")
    # Files of an earlier run of this day are replaced; other days stay.
    target = f"{flags.to}/day={flags.day}"
    totals.coalesce(1).withColumnRenamed("sum(amount)", "amount").write.mode("overwrite").parquet(target)
    print(json.dumps({"day": str(flags.day), "customers": spark.read.parquet(target).count(), "to": target}))
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
