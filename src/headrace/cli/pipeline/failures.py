"""Why a job failed, in one line where that is possible.

An error of Headrace that is raised in one of Spark's workers comes back inside an error of Spark, below a hundred lines
of two languages. Other errors pass unchanged, with every line.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event

from headrace.errors import HeadraceError

GONE = ("Py4JNetworkError", "ConnectionRefusedError")


class JobFailed(HeadraceError):
    """A job ended in one of Spark's workers, or with Spark."""


@contextmanager
def explain_errors(stop: Event | None = None) -> Iterator[None]:
    """Turn errors that a user can act on into errors of Headrace. `stop` is set when the job was asked to end."""
    try:
        yield
    except HeadraceError:
        raise
    except Exception as error:
        reason = explanation(error)
        if stop is not None and stop.is_set() and _is_sparks(error):
            # A signal to all processes of a service, or of a terminal, reaches Spark's, too.
            reason = "Spark ended together with the job. The next run continues after the last round."
        if reason is None:
            raise
        raise JobFailed(reason) from None


def explanation(error: BaseException) -> str | None:
    """An error in one line; None where all of its lines are needed."""
    if type(error).__name__ in GONE:
        return "Spark has ended: it was killed, or had too little memory. See --conf spark.driver.memory=..."
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename} cannot be used: {error.strerror}"
    if _is_sparks(error):
        from headrace.pipeline.jobs.rounds import OURS, find_reason

        return find_reason(error) if OURS.search(str(error)) else None
    return None


def _is_sparks(error: BaseException) -> bool:
    return type(error).__module__.partition(".")[0] in ("pyspark", "py4j") or type(error).__name__ in GONE
