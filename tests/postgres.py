"""A real PostgreSQL as processes of its own, for tests that need one: started, killed, started again.

It listens on a Unix socket in a folder of its own, so there is no port to be found. fsync is on: a test that kills it
wants to know what is left. PostgreSQL refuses to run as root, so under root it runs as another user.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

SECONDS = 90.0
PR_SET_PDEATHSIG = 1
libc = ctypes.CDLL(None)
# The first of them that there is.
USERS = ("postgres", "nobody")
SETTINGS = {
    "listen_addresses": "",
    "fsync": "on",
    "max_connections": "60",
    "shared_buffers": "16MB",
    "autovacuum_naptime": "1s",
    "log_min_messages": "warning",
}


def programs() -> Path:
    """The folder with initdb and the server."""
    found = [Path(initdb).resolve().parent] if (initdb := shutil.which("initdb")) else []
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    for folder in found:
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            return folder
    pytest.skip("there is no PostgreSQL: neither initdb in PATH nor /usr/lib/postgresql")


class Postgres:
    """A cluster with nothing in it."""

    def __init__(self) -> None:
        self._programs = programs()
        self.folder = Path(tempfile.mkdtemp(prefix="headrace-postgres-"))
        self._user: str | None = None
        if os.geteuid() == 0:
            self._user = next(user for user in USERS if _exists(user))
            shutil.chown(self.folder, self._user)
        self._process: subprocess.Popen[bytes] | None = None
        self._databases = 0
        self._run("initdb", "-D", self._data, "-U", "headrace", "-A", "trust", "-E", "UTF8", "--no-sync")

    def __enter__(self) -> Postgres:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def _data(self) -> str:
        return str(self.folder / "data")

    def url(self, database: str = "postgres") -> str:
        """For SQLAlchemy, sync and async alike."""
        return f"postgresql+psycopg://headrace@/{database}?host={self.folder}"

    def connect(self, database: str = "postgres") -> psycopg.Connection[tuple[object, ...]]:
        """A connection that sees each statement through."""
        return psycopg.connect(host=str(self.folder), dbname=database, user="headrace", autocommit=True)

    def new_database(self) -> str:
        """A database that nobody has used; its name."""
        self._databases += 1
        name = f"test{self._databases}"
        with self.connect() as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return name

    def start(self) -> None:
        """Start it, and return when it answers; after a kill, when it has recovered."""
        arguments = [str(self._programs / "postgres"), "-D", self._data, "-k", str(self.folder)]
        for name, value in SETTINGS.items():
            arguments += ["-c", f"{name}={value}"]
        end = time.monotonic() + SECONDS
        while True:
            with (self.folder / "log").open("ab") as log:
                self._process = subprocess.Popen(
                    arguments,
                    stdout=log,
                    stderr=log,
                    user=self._user,
                    cwd=self.folder,
                    start_new_session=True,
                    preexec_fn=die_with_the_parent,
                )
            while self._process.poll() is None:
                with suppress(psycopg.OperationalError), self.connect():
                    return
                assert time.monotonic() < end, self.words()
                time.sleep(0.02)
            # Processes of the one that was killed may still be there, and hold its memory.
            assert time.monotonic() < end, self.words()
            time.sleep(0.05)

    def kill(self) -> None:
        """End all of it at once, as a crash of the machine's kernel would, except that the files are in its cache."""
        process, self._process = self._process, None
        if process is not None:
            for pid in _children(process.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.kill()
            process.wait(SECONDS)

    def cut(self, database: str, share: float = 1.0) -> None:
        """End connections to a database, as an administrator or a broken network would: all, or a share of them."""
        with self.connect() as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s AND random() < %s",
                (database, share),
            )

    def words(self) -> str:
        """What the server logged, the last of it."""
        return (self.folder / "log").read_text()[-4000:]

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(self._programs / program), *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            user=self._user,
            cwd=self.folder,
        )
        assert done.returncode == 0, done.stdout + done.stderr


def die_with_the_parent() -> None:
    """A test run that is killed leaves nothing behind. (For PostgreSQL, SIGQUIT means at once.)"""
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGQUIT)


def _exists(user: str) -> bool:
    with suppress(KeyError):
        return bool(pwd.getpwnam(user))
    return False


def _children(pid: int) -> list[int]:
    with suppress(OSError):
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """One for the whole run: use databases of your own, and do not kill it."""
    with Postgres() as running:
        yield running
