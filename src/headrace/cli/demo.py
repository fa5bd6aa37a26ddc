"""`headrace demo`: its scenarios lie in `examples/demo` of a checkout, and are not installed with the package."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from headrace.errors import HeadraceError


def find_demo(checkout: Path) -> Callable[..., None]:
    """The demo of a checkout; elsewhere a command that reports where the demo is."""
    if not (checkout / "examples" / "demo").is_dir():
        return not_installed
    sys.path.insert(0, str(checkout))
    found: Callable[..., None] = import_module("examples.demo").command
    return found


def not_installed() -> None:
    """Runs a broker and four scenarios through it, in a checkout of the repository."""
    raise HeadraceError("the demo is not installed with the package. Clone the repository, and run `make demo` in it.")


command = find_demo(Path(__file__).parents[3])
