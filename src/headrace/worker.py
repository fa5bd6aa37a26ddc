"""A worker process: computation that would hold the broker's interpreter runs here.

`python -m headrace.worker ROOT` reads one pickled (function, arguments) from standard input, calls the function with a disk
over ROOT as its first argument, and writes the pickled (result, None) or (None, error) to standard output. A new interpreter,
never a fork of the host: the host may be anybody's process with threads of its own.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from headrace.ground.disk import SystemDisk

T = TypeVar("T")


def call_in_worker(root: str, function: Callable[..., T], args: tuple[Any, ...]) -> T:
    """Call `function(disk, *args)` in a worker process and wait for it. Blocks: for an offload thread."""
    done = subprocess.run(
        [sys.executable, "-m", "headrace.worker", root],
        input=pickle.dumps((function, args)),
        stdout=subprocess.PIPE,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"the worker for {function.__name__} ended with status {done.returncode}")
    result, error = pickle.loads(done.stdout)
    if error is not None:
        raise error
    return result  # type: ignore[no-any-return]


def main() -> None:
    function, args = pickle.load(sys.stdin.buffer)
    try:
        answer: tuple[Any, BaseException | None] = (function(SystemDisk(sys.argv[1]), *args), None)
    except Exception as error:
        answer = (None, error)
    sys.stdout.buffer.write(pickle.dumps(answer))


if __name__ == "__main__":
    main()
