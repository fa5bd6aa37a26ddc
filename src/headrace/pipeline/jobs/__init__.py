"""Jobs over topics, each a function to import and a command: `headrace pipeline NAME`."""

from headrace.pipeline.jobs.archive import Archived, archive

__all__ = ["Archived", "archive"]
