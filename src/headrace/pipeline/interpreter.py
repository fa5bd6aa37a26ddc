"""The Python that Spark's workers on this machine run.

Spark puts a zip of PySpark's sources in front of everything else that a worker could import. Nothing of a zip is kept
compiled, so every process that Spark starts compiles PySpark anew: 1.6 s of CPU instead of 0.4 s. The installed package
is the same, so a script in front of Python drops that path again.
"""

from __future__ import annotations

import atexit
import os
import shlex
import shutil
import sys
import tempfile
from functools import cache
from pathlib import Path

SCRIPT = """\
#!/bin/sh
{path}
exec {python} "$@"
"""


@cache
def interpreter() -> str:
    """Its path, for `PYSPARK_PYTHON`; it is there as long as this process. Where no script can be run from the folder
    of temporary files, Python itself."""
    if os.name != "posix":
        return sys.executable
    folder = tempfile.mkdtemp(prefix="headrace-python-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    script = Path(folder) / "python"
    # What this process was given goes on to the workers.
    mine = os.environ.get("PYTHONPATH")
    path = "unset PYTHONPATH" if mine is None else f"export PYTHONPATH={shlex.quote(mine)}"
    script.write_text(SCRIPT.format(path=path, python=shlex.quote(sys.executable)))
    script.chmod(0o700)
    return str(script) if os.access(script, os.X_OK) else sys.executable
