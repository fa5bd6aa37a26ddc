"""What Spark looks for: a package whose name begins with `pyspark_`, with a `DefaultSource` in it."""

from headrace.pipeline.source import HeadraceSource as DefaultSource

__all__ = ["DefaultSource"]
