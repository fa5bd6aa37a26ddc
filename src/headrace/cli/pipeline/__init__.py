"""`headrace pipeline`: jobs over topics, on Spark.

Every job is a function of `headrace.pipeline.jobs`; a command adds flags or a file of settings, a Spark session, and a
display of how far it has come (`job.py`).
"""

from __future__ import annotations

import typer

from headrace.cli.pipeline import archive, audit, lake, logs, maintain, replay, sessions

app = typer.Typer(help="Runs jobs over topics on Spark: pip install 'headrace[pipeline]'.", no_args_is_help=True)


@app.callback()
def jobs() -> None:
    """Runs jobs over topics on Spark: pip install 'headrace[pipeline]'."""


app.command("archive")(archive.archive)
app.command("audit")(audit.audit)
app.command("lake")(lake.lake)
app.command("logs")(logs.logs)
app.command("maintain")(maintain.maintain)
app.command("replay")(replay.replay)
app.command("sessions")(sessions.sessions)
