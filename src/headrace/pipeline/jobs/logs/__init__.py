"""Service log processing: lines in many formats, counted by window, service and level."""

from headrace.pipeline.jobs.logs.job import Logs, logs
from headrace.pipeline.jobs.logs.plot import plot

__all__ = ["Logs", "logs", "plot"]
