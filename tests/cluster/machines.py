"""Machines on this one: network namespaces with addresses and links of their own, and disks that fill, hang and fail.

A machine is a namespace on a bridge. Its link can be taken down, which is silence on both sides, and what it sends to
another machine can be lost, one direction by itself: the other's address then belongs to hardware that is not there.
Its disk is a tmpfs, which is full as soon as it is made smaller. What a sync takes is decided by a library that is
preloaded (`device.c`), since device mappers and slow disks need more than a user of tests has.

Needs root and `ip`; the addresses are in these namespaces alone.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path

from bench.peers import Missing

SOURCE = Path(__file__).with_name("device.c")
# Hardware that nothing has: a bridge sends this to everyone, and everyone drops it.
NOBODY = "02:00:00:00:00:fe"
DISK_BYTES = 1 << 30
HANGING, FAILING = -1, 1_000_000


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


class Machine:
    """One namespace, and one disk."""

    def __init__(self, name: str, address: str, folder: Path, library: Path, bridge: str, number: int) -> None:
        self.name = name
        self.address = address
        self.disk = folder / name
        self._link = f"{bridge}-{number}"
        self._device = folder / f"{name}.device"
        self._namespace = f"{bridge}-{name}"
        self._bridge = bridge
        self._library = library

    @property
    def under(self) -> tuple[str, ...]:
        """The command that runs a process on it."""
        preload = ("env", f"LD_PRELOAD={self._library}", f"DEVICE={self._device}")
        return ("ip", "netns", "exec", self._namespace, *preload)

    def make(self) -> None:
        self._device.write_bytes(bytes(8))
        self.disk.mkdir()
        _run("mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "headrace-test", str(self.disk))
        _run("ip", "netns", "add", self._namespace)
        _run("ip", "link", "add", self._link, "type", "veth", "peer", "name", "eth0", "netns", self._namespace)
        _run("ip", "link", "set", self._link, "master", self._bridge, "up")
        self._inside("ip", "address", "add", f"{self.address}/24", "dev", "eth0")
        self._inside("ip", "link", "set", "eth0", "up")
        self._inside("ip", "link", "set", "lo", "up")

    def unmake(self) -> None:
        subprocess.run(["ip", "netns", "del", self._namespace], capture_output=True, timeout=30, check=False)
        subprocess.run(["umount", "--lazy", str(self.disk)], capture_output=True, timeout=30, check=False)

    def _inside(self, *command: str) -> str:
        return _run("ip", "netns", "exec", self._namespace, *command)

    # --- its links ---

    def unplug(self) -> None:
        """Nothing comes or goes any more, and nobody is told."""
        _run("ip", "link", "set", self._link, "down")

    def plug(self) -> None:
        _run("ip", "link", "set", self._link, "up")

    def lose(self, to: Machine) -> None:
        """What it sends to another machine is lost; what comes from there arrives."""
        self._inside("ip", "neighbour", "replace", to.address, "lladdr", NOBODY, "nud", "permanent", "dev", "eth0")

    def reach(self, to: Machine) -> None:
        """The other machine gets what it is sent again."""
        self._inside("ip", "neighbour", "del", to.address, "dev", "eth0")

    # --- its disk ---

    def fill(self, room: int = 0) -> None:
        """Let its disk have so many bytes left, or a little more."""
        found = os.statvfs(self.disk)
        self._resize((found.f_blocks - found.f_bfree) * found.f_frsize + room)

    def make_room(self) -> None:
        self._resize(DISK_BYTES)

    def _resize(self, size: int) -> None:
        _run("mount", "-o", f"remount,size={max(size, 4096)}", str(self.disk))

    def slow(self, milliseconds: int) -> None:
        """Let each sync take so long; 0: as long as it takes."""
        self._set(milliseconds)

    def hang(self) -> None:
        """Let no sync end, until `slow`."""
        self._set(HANGING)

    def fail(self) -> None:
        """Let syncs answer EIO, until `slow`."""
        self._set(FAILING)

    def _set(self, value: int) -> None:
        with self._device.open("r+b") as file:
            file.write(struct.pack("<q", value))


class Machines:
    """Machines by their names, reachable from here. Raises Missing where they cannot be made."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self._folder = folder
        # Runs beside each other need names and networks of their own.
        number = os.getpid() % 200 + 20
        self._bridge = f"hr{number}"
        self._network = f"10.231.{number}"
        self._library = folder / "device.so"
        self._machines = {
            name: Machine(name, f"{self._network}.{index + 1}", folder, self._library, self._bridge, index)
            for index, name in enumerate(names)
        }

    def __getitem__(self, name: str) -> Machine:
        return self._machines[name]

    def __enter__(self) -> Machines:
        if os.geteuid() or not all(map(shutil.which, ("ip", "mount", "gcc"))):
            raise Missing("machines of their own need root, ip, mount and gcc")
        try:
            _run("gcc", "-shared", "-fPIC", "-O1", "-Wall", "-o", str(self._library), str(SOURCE), "-ldl")
            _run("ip", "link", "add", self._bridge, "type", "bridge")
            _run("ip", "address", "add", f"{self._network}.254/24", "dev", self._bridge)
            _run("ip", "link", "set", self._bridge, "up")
            for each in self._machines.values():
                each.make()
        except OSError as error:
            self.__exit__()
            raise Missing(f"machines cannot be made here: {error}") from None
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._machines.values():
            each.unmake()
        subprocess.run(["ip", "link", "del", self._bridge], capture_output=True, timeout=30, check=False)
