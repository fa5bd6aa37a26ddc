"""axe-core, which judges whether pages can be used by everyone: fetched from npm, once.

    python -m bench.peers.axe

`AXE` names a file that is there already.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from bench.peers import Missing

FETCHED = Path(__file__).parent.parent / ".peers" / "axe.min.js"
VERSION = "4.10.2"
SECONDS = 120


def find() -> Path:
    """The file. Raises Missing where it was not fetched."""
    named = Path(os.environ["AXE"]) if os.environ.get("AXE") else FETCHED
    if not named.is_file():
        raise Missing("axe-core is not there: python -m bench.peers.axe")
    return named


def fetch() -> Path:
    """Fetch it with npm, if it is not there."""
    if FETCHED.is_file():
        return FETCHED
    with tempfile.TemporaryDirectory() as folder:
        command = ["npm", "pack", f"axe-core@{VERSION}", "--json"]
        done = subprocess.run(command, cwd=folder, capture_output=True, timeout=SECONDS, check=True)
        packed = (Path(folder) / json.loads(done.stdout)[0]["filename"]).read_bytes()
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        file = tar.extractfile("package/axe.min.js")
        assert file is not None
        FETCHED.parent.mkdir(parents=True, exist_ok=True)
        FETCHED.write_bytes(file.read())
    return FETCHED


if __name__ == "__main__":
    try:
        print(fetch())
    except (OSError, subprocess.SubprocessError) as error:
        sys.exit(f"axe-core could not be fetched with npm: {error}")
