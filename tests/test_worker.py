"""A call in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.waiting import wait_until

from headrace.runtime.disk import SystemDisk
from headrace.worker import Call

HOST = """\
import sys
from headrace.worker import Call
from waits import wait_for_ever
Call(sys.argv[1], wait_for_ever, ()).wait()
"""
WAITS = """\
import os, time
def wait_for_ever(disk):
    print(os.getpid(), file=open(disk.root + "/pid.tmp", "w"), flush=True)
    os.rename(disk.root + "/pid.tmp", disk.root + "/pid")
    time.sleep(60)
"""


def test_what_lies_in_the_current_directory_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file").touch()
    for name in ("pickle", "typing", "headrace"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(3)\n")
    monkeypatch.chdir(tmp_path)
    assert Call(str(tmp_path), SystemDisk.listdir, ("data",)).wait() == ["file"]


def test_a_worker_ends_with_its_host(tmp_path: Path) -> None:
    # It would go on to write files where the next broker writes them too.
    (tmp_path / "waits.py").write_text(WAITS)
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    with subprocess.Popen([sys.executable, "-c", HOST, str(tmp_path)], env=os.environ | {"PYTHONPATH": path}) as host:
        wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
        host.kill()
    pid = int((tmp_path / "pid").read_text())
    wait_until(lambda: not working(pid))


def working(pid: int) -> bool:
    """Whether a process is there, and not only until somebody asks how it ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        # The second if it goes while the file is open.
        return False
