"""A real etcd on loopback: one member or several, each of which can be killed, stopped and started again.

    python -m bench.peers.etcd          finds an etcd, or installs Debian's etcd-server, or builds one with Go
    python -m bench.peers.etcd 3        runs three members until they are stopped, and prints where they are

`ETCD` names one that is there already.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from bench.peers import READY_SECONDS, Missing, end, free_port

SECONDS = 900
FETCHED = Path(__file__).parent.parent / ".peers" / "etcd"
# `go install` refuses modules with replace lines, and a module that needs the server does not.
VERSION = "v3.6.5"
MAIN = """\
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
"""


def find() -> str:
    """The path of an etcd. Raises Missing."""
    if given := os.environ.get("ETCD"):
        if not os.access(given, os.X_OK):
            raise Missing(f"ETCD is {given}, which cannot be run")
        return given
    found = shutil.which("etcd") or (str(FETCHED) if os.access(FETCHED, os.X_OK) else None)
    if found is None:
        raise Missing("there is no etcd: run make etcd, or give the path of one in ETCD")
    return found


def install() -> str:
    """The path of an etcd, which is fetched if need be. Raises Missing."""
    try:
        return find()
    except Missing:
        if os.environ.get("ETCD"):
            raise
    FETCHED.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="headrace-etcd-") as name:
        folder = Path(name)
        if not _unpack_debian(folder) and not _build(folder):
            raise Missing("neither Debian's etcd-server nor a build with Go is to be had here")
        os.replace(shutil.move(folder / "etcd", FETCHED.with_suffix(".new")), FETCHED)
    return str(FETCHED)


def _unpack_debian(folder: Path) -> bool:
    """Debian's package, without the service that its installation starts."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        return False
    if not _run(["apt-get", "download", "-qq", "etcd-server"], folder):
        _run(["apt-get", "update", "-qq"], folder)
        if not _run(["apt-get", "download", "-qq", "etcd-server"], folder):
            return False
    package = next(folder.glob("etcd-server_*.deb"))
    if not _run(["dpkg-deb", "-x", str(package), "."], folder):
        return False
    shutil.move(folder / "usr" / "bin" / "etcd", folder / "etcd")
    return True


def _build(folder: Path) -> bool:
    """A build with Go, of a module that needs nothing but the server."""
    go = shutil.which("go")
    if go is None:
        return False
    source = folder / "source"
    source.mkdir()
    (source / "main.go").write_text(MAIN)
    return (
        _run([go, "mod", "init", "etcd"], source)
        and _run([go, "get", f"go.etcd.io/etcd/server/v3/etcdmain@{VERSION}"], source)
        and _run([go, "build", "-o", str(folder / "etcd"), "."], source)
    )


def _run(command: list[str], folder: Path) -> bool:
    done = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, timeout=SECONDS, check=False)
    return done.returncode == 0


class Member:
    """One member, with its data in a folder of its own."""

    def __init__(
        self, program: str, name: str, folder: Path, scheme: str, host: str = "127.0.0.1", under: Sequence[str] = ()
    ) -> None:
        """`under`: a command that runs it, on a machine that has that address."""
        self.name = name
        self.host = host
        self.port = free_port()
        self.peer_port = free_port()
        self.folder = folder
        self.process: subprocess.Popen[bytes] | None = None
        self.command: list[str] = [*under, program]
        self._scheme = scheme

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def client_url(self) -> str:
        return f"{self._scheme}://{self.address}"

    @property
    def peer_url(self) -> str:
        return f"http://{self.host}:{self.peer_port}"

    @property
    def log(self) -> Path:
        return self.folder / "log"

    def start(self) -> None:
        """Begin; it has what it had before."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, cwd=self.folder
            )

    def signal(self, number: int) -> None:
        """SIGSTOP leaves it silent, with its connections open; SIGCONT ends that."""
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """As the kernel ends a process: without a word."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


class EtcdPeers:
    """So many members in one folder. Raises Missing where there is no etcd."""

    def __init__(
        self,
        count: int,
        folder: Path,
        *,
        options: Sequence[str] = (),
        scheme: str = "http",
        places: Sequence[tuple[str, Sequence[str]]] = (),
    ) -> None:
        """`places`: the address of each, and the command that runs it there; here if there are none."""
        program = find()
        printed = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=60, check=False).stdout
        found = re.search(r"etcd Version: (\S+)", printed)
        self.version = found[1] if found else ""
        where = places or [("127.0.0.1", ())] * count
        self.members = [
            Member(program, f"m{number}", folder / f"m{number}", scheme, *where[number]) for number in range(count)
        ]
        everyone = ",".join(f"{member.name}={member.peer_url}" for member in self.members)
        for member in self.members:
            member.command += [
                f"--name={member.name}",
                f"--data-dir={member.folder / 'data'}",
                f"--listen-client-urls={member.client_url}",
                f"--advertise-client-urls={member.client_url}",
                f"--listen-peer-urls={member.peer_url}",
                f"--initial-advertise-peer-urls={member.peer_url}",
                f"--initial-cluster={everyone}",
                # Loopback and a folder that is thrown away: a busy machine must not look like a broken one.
                "--heartbeat-interval=100",
                "--election-timeout=1000",
                *options,
            ]

    def start(self) -> None:
        """Begin all. They answer a little later: see `wait`."""
        for member in self.members:
            member.start()

    def wait(self) -> None:
        """Return when each member knows a leader (plain text alone)."""
        until = time.monotonic() + READY_SECONDS
        for member in self.members:
            while not _has_leader(member):
                if time.monotonic() > until:
                    raise TimeoutError(f"etcd is not ready after {READY_SECONDS} s: {member.log.read_text()[-2000:]}")
                time.sleep(0.02)

    def stop(self) -> None:
        """End all."""
        for member in self.members:
            if member.process is not None:
                member.signal(signal.SIGCONT)
                end(member.process)
                member.process = None


def _has_leader(member: Member) -> bool:
    asked = urllib.request.Request(f"{member.client_url}/v3/maintenance/status", data=b"{}", method="POST")
    try:
        with urllib.request.urlopen(asked, timeout=5) as answer:
            return bool(json.load(answer).get("leader", "0") != "0")
    except OSError:
        return False


def main() -> None:
    if len(sys.argv) == 1:
        print(install())
        return
    install()
    with tempfile.TemporaryDirectory(prefix="headrace-etcd-") as folder:
        peers = EtcdPeers(int(sys.argv[1]), Path(folder))
        peers.start()
        try:
            peers.wait()
            print(f"etcd://{','.join(member.address for member in peers.members)}/NAME", flush=True)
            signal.pause()
        except KeyboardInterrupt:
            pass
        finally:
            peers.stop()


if __name__ == "__main__":
    main()
