"""The data pipeline: the log in Spark, through PySpark. An extra: `pip install headrace[pipeline]`.

`spark.read.format("headrace")` and `spark.readStream.format("headrace")` are found by Spark without registration (the
package `pyspark_headrace`). Nothing here is imported by the broker.
"""
