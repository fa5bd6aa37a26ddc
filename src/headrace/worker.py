"""A worker process: computation that would hold the broker's interpreter runs here.

`python -m headrace.worker ROOT HOST` reads one pickled (function, arguments) from standard input, calls the function
with a disk over ROOT as its first argument, and writes the pickled (result, None) or (None, error) to standard output.
A new interpreter, never a fork of the host: the host may be any process, with threads of its own. It ends with its
host (HOST is the process id), however that ends: going on, it would write files that the next broker's worker writes.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from headrace.errors import WorkerFailed
from headrace.runtime.disk import SystemDisk

T = TypeVar("T")

# Of Linux's prctl: the signal that this process gets when the thread that started it ends.
PR_SET_PDEATHSIG = 1


class Call:
    """A call in a worker process, which can be given up."""

    def __init__(self, root: str, function: Callable[..., T], args: tuple[Any, ...]) -> None:
        self._name = function.__name__
        self._input = pickle.dumps((function, args))
        # -P: what lies in the current directory may be named like a module.
        command = [sys.executable, "-P", "-m", "headrace.worker", root, str(os.getpid())]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def wait(self) -> Any:
        """The function's result, or its error raised. Blocks: for an offload thread."""
        output, _ = self._process.communicate(self._input)
        if self._process.returncode != 0:
            raise WorkerFailed(f"the worker for {self._name} ended with status {self._process.returncode}")
        result, error = pickle.loads(output)
        if error is not None:
            raise error
        return result

    def give_up(self) -> None:
        """End the process, whatever it does."""
        self._process.kill()


def end_with(host: int) -> None:
    """Let the kernel end this process with its host."""
    # Here, because the host imports this module too.
    import ctypes

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != host:
        # It ended before.
        sys.exit(1)


def main() -> None:
    end_with(int(sys.argv[2]))
    function, args = pickle.load(sys.stdin.buffer)
    try:
        answer: tuple[Any, BaseException | None] = (function(SystemDisk(sys.argv[1]), *args), None)
    except Exception as error:
        answer = (None, error)
    sys.stdout.buffer.write(pickle.dumps(answer))


if __name__ == "__main__":
    main()
