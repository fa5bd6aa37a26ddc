"""A process that has loaded PySpark and the source, from which the planners of streams are forked.

Spark starts a Python of its own for every stream, to plan it, and that loads PySpark, pyarrow and numpy: half a second
of CPU, more than the whole rest of a stream that finds little. Its daemon forks the workers of tasks, which is why
those are cheap; this does the same for planners. The first planner of a session leaves a copy of itself behind as it
was when all was loaded (`python -m headrace.pipeline.nursery FOLDER`, by `launcher`); later ones are copies of that. It
ends with the JVM, or when no stream has started for some minutes. Linux only.
"""

from __future__ import annotations

import fcntl
import gc
import os
import random
import selectors
import signal
import socket
import sys
import threading
import traceback
from pathlib import Path
from typing import NoReturn

from pyspark.sql.streaming import python_streaming_source_runner as planner
from pyspark.worker_util import get_sock_file_to_executor

# What planning needs, so that copies have it.
from headrace.pipeline import broker, readers, source
from headrace.pipeline.launcher import NAME, PID

IDLE_SECONDS = 300
LOADED = (broker, readers, source)


def main(folder: Path) -> None:
    """Be the first planner, and leave a copy behind. Where another one does that already, be a planner only."""
    jvm = os.getppid()
    lock = os.open(folder / "nursery.lock", os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
    else:
        if os.fork() == 0:
            _stay(folder, jvm, lock)
        # The copy has it, and keeps it for as long as it lives.
        os.close(lock)
    plan()


def plan() -> None:
    with get_sock_file_to_executor(timeout=None) as jvm:
        planner.main(jvm, jvm)


def _stay(folder: Path, jvm: int, lock: int) -> NoReturn:
    """The process that is copied."""
    code = 1
    try:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(nothing, standard)
        # What is there already is for ever, and copies need not look at it.
        gc.freeze()
        path = folder / NAME
        path.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(path))
            listening.listen()
            unfinished = folder / f"{PID}.new"
            unfinished.write_text(str(os.getpid()))
            unfinished.rename(folder / PID)
            try:
                _serve(listening, jvm, lock)
            finally:
                path.unlink(missing_ok=True)
        code = 0
    finally:
        os._exit(code)


def _serve(listening: socket.socket, jvm: int, lock: int) -> None:
    with selectors.DefaultSelector() as selector:
        selector.register(os.pidfd_open(jvm), selectors.EVENT_READ, jvm)
        selector.register(listening, selectors.EVENT_READ)
        while ready := selector.select(IDLE_SECONDS):
            for key, _ in ready:
                if key.data == jvm:
                    return
                if key.data is not None:
                    selector.unregister(key.fd)
                    os.close(key.fd)
                    os.waitpid(key.data, 0)
                    continue
                asked, _ = listening.accept()
                with asked:
                    copy = os.fork()
                    if copy == 0:
                        listening.close()
                        # Else nobody could take this one's place while the copy lives.
                        os.close(lock)
                        _be_copied(asked)
                selector.register(os.pidfd_open(copy), selectors.EVENT_READ, copy)


def _be_copied(asked: socket.socket) -> NoReturn:
    """A planner, in the place of the process that asks."""
    code = 1
    try:
        _take_place(asked)
        random.seed()
        asked.sendall(b"\1")
        # When Spark ends the process that asked, it means this one.
        threading.Thread(target=_end_with, args=(asked,), daemon=True).start()
        plan()
        code = 0
    except SystemExit:
        pass
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _take_place(asked: socket.socket) -> None:
    size, standard, _, _ = socket.recv_fds(asked, 4, 3)
    for number, each in enumerate(standard):
        os.dup2(each, number)
        os.close(each)
    request = asked.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL)
    where, *variables = request.split(b"\0")
    os.environb.clear()
    for variable in variables:
        name, _, value = variable.partition(b"=")
        os.environb[name] = value
    os.chdir(where)


def _end_with(asked: socket.socket) -> None:
    asked.recv(1)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
