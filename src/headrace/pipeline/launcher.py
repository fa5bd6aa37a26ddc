"""Asks a process that has loaded PySpark (`nursery`) for a stream's planner, or becomes the first such process.

Run by its path and without site-packages, because it stands between Spark and every stream that starts:
`python -I -S launcher.py FOLDER PYTHON`. Whatever goes wrong, the planner runs as Spark wanted it.
"""

import os
import socket
import sys

NAME = "nursery"
PID = "nursery.pid"
PLANNER = "pyspark.sql.streaming.python_streaming_source_runner"


def main(folder: str, python: str) -> None:
    with socket.socket(socket.AF_UNIX) as asked:
        try:
            asked.connect(os.path.join(folder, NAME))
            ask(asked)
            begun = asked.recv(1)
        except OSError:
            begun = b""
        if begun:
            # Spark ends this process to end the planner, and takes its end for the planner's.
            asked.recv(1)
            return
    nursery = ["-m", "headrace.pipeline.nursery", folder] if hasattr(os, "pidfd_open") else ["-m", PLANNER]
    os.execv(python, [python, *nursery])


def ask(asked: socket.socket) -> None:
    """Hand over what a process gets from its parent."""
    environment = b"\0".join(name + b"=" + value for name, value in os.environb.items())
    request = os.fsencode(os.getcwd()) + b"\0" + environment
    socket.send_fds(asked, [len(request).to_bytes(4, "big")], [0, 1, 2])
    asked.sendall(request)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
