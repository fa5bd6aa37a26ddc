"""The `headrace` command.

`serve` does not share the other commands' machinery (typer, rich): a broker should be ready before those are even
imported, and should not carry them in its memory.
"""

from __future__ import annotations

import os
import sys

# What a shell reports for a process that was ended by SIGINT.
INTERRUPTED = 130


def main() -> None:
    """The entry point of the `headrace` script."""
    try:
        _open_missing_streams()
        code = _run()
    except KeyboardInterrupt:
        # Here for Ctrl-C while modules are still being imported.
        code = INTERRUPTED
    sys.exit(code)


def _run() -> int:
    if sys.argv[1:2] == ["serve"]:
        from headrace.cli.serve import serve

        return serve(sys.argv[2:])
    from headrace.cli.app import run

    return run()


def _open_missing_streams() -> None:
    """Give a process that was started without standard streams empty ones. The next file that it opens, a segment of
    the log perhaps, would otherwise get their number, and what a library has to say would be written into it."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            # The lowest number that is free, and those before it are taken.
            assert os.open(os.devnull, os.O_RDWR) == number
            setattr(sys, name, os.fdopen(number, mode))
