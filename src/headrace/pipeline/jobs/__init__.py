"""Jobs over topics, each a function to import and a command: `headrace pipeline NAME`."""

from headrace.pipeline.jobs.archive import Archived, archive
from headrace.pipeline.jobs.audit import audit
from headrace.pipeline.jobs.audit_report import Report
from headrace.pipeline.jobs.lake import TableStatus, lake
from headrace.pipeline.jobs.logs import Logs, logs
from headrace.pipeline.jobs.replay import Replayed, replay
from headrace.pipeline.jobs.sessions import Sessions, sessions

__all__ = [
    "Archived",
    "Logs",
    "Replayed",
    "Report",
    "Sessions",
    "TableStatus",
    "archive",
    "audit",
    "lake",
    "logs",
    "replay",
    "sessions",
]
