"""What a job failed of, in one line where it can be said in one.

An error of Headrace that was raised in one of Spark's workers comes back inside an error of Spark, below a hundred
lines of two languages. What is none of ours comes as it is: somebody will want every line of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event

from headrace.errors import HeadraceError

# As Python ends the traceback of a worker: the error's class with its module, and what it says.
OURS = re.compile(r"^(?:.*\bException: |\s*)?headrace\.[\w.]+\.(\w+): (.+)$", re.MULTILINE)
GONE = ("Py4JNetworkError", "ConnectionRefusedError")


class JobFailed(HeadraceError):
    """A job ended in one of Spark's workers, or with Spark."""


@contextmanager
def explained(stop: Event | None = None) -> Iterator[None]:
    """Errors that people can do something about, as those of Headrace. `stop` is set when the job was told to end."""
    try:
        yield
    except HeadraceError:
        raise
    except Exception as error:
        said = explanation(error)
        if stop is not None and stop.is_set() and _is_sparks(error):
            # A signal to all processes of a service, or of a terminal, reaches Spark's, too.
            said = "Spark was ended together with the job: the next run goes on behind what was done"
        if said is None:
            raise
        raise JobFailed(said) from None


def explanation(error: BaseException) -> str | None:
    """What to say of an error; None where nothing shorter than all of it will do."""
    if type(error).__name__ in GONE:
        return "Spark has ended: it was killed, or had too little memory (--conf spark.driver.memory=...)"
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename} cannot be used: {error.strerror}"
    if _is_sparks(error):
        found = OURS.findall(str(error))
        return found[-1][1].strip() if found else None
    return None


def _is_sparks(error: BaseException) -> bool:
    return type(error).__module__.partition(".")[0] in ("pyspark", "py4j") or type(error).__name__ in GONE
