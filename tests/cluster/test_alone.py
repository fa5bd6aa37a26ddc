from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
import headrace.cli.serve, headrace.server, headrace.embedded, headrace.doors.registry
print([name for name in sys.modules if name.startswith("headrace.cluster")])
"""


def test_a_broker_that_runs_alone_imports_nothing_of_the_cluster_but_its_settings() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout == "['headrace.cluster', 'headrace.cluster.settings']\n"
