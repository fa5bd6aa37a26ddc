"""Options that name a folder or a file: `typer.Option(parser=path_of)`."""

from __future__ import annotations

import os
from pathlib import Path

from headrace.targets import local_path


def path_of(text: str | os.PathLike[str]) -> Path:
    """A path of this machine, or a `file:` URL of one. Raises TargetInvalid for every other URL, before anything is
    made."""
    return Path(local_path(text, "the path"))
