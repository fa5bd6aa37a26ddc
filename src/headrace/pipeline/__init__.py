"""The data pipeline: the log in Spark, through PySpark. An extra: `pip install headrace[pipeline]`.

`spark.read.format("headrace")` and `spark.readStream.format("headrace")` are found by Spark without registration (the
package `pyspark_headrace`). Nothing here is imported by the broker.

Spark looks for sources with the Python that `PYSPARK_PYTHON` names, or else the first `python3` of the PATH, which
outside of an activated virtual environment is another one without Headrace: DATA_SOURCE_NOT_FOUND. A program that
imports this before the session is made has Spark run the Python of this process, unless another one is named.
"""

import os
import sys

if sys.executable:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
