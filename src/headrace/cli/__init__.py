"""The `headrace` command.

`serve` does not share the other commands' machinery (typer, rich): a broker should be ready before those are even
imported, and should not carry them in its memory.
"""

from __future__ import annotations

import sys


def main() -> None:
    """The entry point of the `headrace` script."""
    if sys.argv[1:2] == ["serve"]:
        from headrace.cli.serve import serve

        sys.exit(serve(sys.argv[2:]))
    from headrace.cli.app import run

    sys.exit(run())
