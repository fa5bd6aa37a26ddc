"""Records once more, through a function, into another topic or a table."""

from headrace.pipeline.jobs.replay.job import Replayed, replay

__all__ = ["Replayed", "replay"]
