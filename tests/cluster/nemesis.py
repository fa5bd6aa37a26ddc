"""Faults of a group of real processes and of its etcd, at random from a seed, several at once."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable
from random import Random

from bench.peers.etcd import EtcdPeers, Member
from tests.cluster.group_processes import GroupProcesses

# So many things are broken at once.
AT_ONCE = 2
# A lease of etcd, and some: what is paused longer is taken for dead.
PAUSE_SECONDS = (0.5, 5.0)


class Nemesis:
    """Breaks what it is given, and mends it again. `stop` mends everything."""

    def __init__(self, group: GroupProcesses, peers: EtcdPeers, seed: int, at_once: int = AT_ONCE) -> None:
        self.done: Counter[str] = Counter()
        """How often each fault was there."""
        self.leaders: set[int] = set()
        """The epochs that were seen."""
        self._group = group
        self._peers = peers
        self._random = Random(seed)
        self._at_once = at_once
        self._broken: dict[str, Callable[[], None]] = {}
        """What mends each thing that is broken now."""
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="nemesis")
        self.faults: dict[str, Callable[[], None]] = {
            "leader killed": lambda: self._kill(self._leader()),
            "node killed": lambda: self._kill(self._any()),
            "leader paused": lambda: self._pause(self._leader()),
            "node paused": lambda: self._pause(self._any()),
            "leader stopped": lambda: self._stop(self._leader()),
            "node stopped": lambda: self._stop(self._any()),
            "handed over": lambda: self._transfer(self._any()),
            "member of etcd killed": lambda: self._kill_member(self._random.choice(self._peers.members)),
            "member of etcd paused": lambda: self._pause_member(self._random.choice(self._peers.members)),
            "etcd paused": self._pause_etcd,
        }

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Break no more, mend everything, and raise what went wrong in here."""
        self._stopping.set()
        self._thread.join()
        while self._broken:
            self._mend(next(iter(self._broken)))
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        random = self._random
        try:
            while not self._stopping.wait(random.uniform(0.3, 3.0)):
                if self._broken and random.random() < 0.6:
                    self._mend(random.choice(list(self._broken)))
                self._look_after()
                if len(self._broken) < self._at_once:
                    fault = random.choice(list(self.faults))
                    self.faults[fault]()
                    self.done[fault] += 1
        except BaseException as error:
            self._failure = error

    def _mend(self, name: str) -> None:
        self._broken.pop(name)()

    def _look_after(self) -> None:
        """See whether nodes have ended by themselves."""

    # --- nodes ---

    def _any(self) -> int:
        return self._random.choice(list(self._group.nodes))

    def _leader(self) -> int:
        """The node that leads, or any where that is not to be known."""
        try:
            record = self._group.status()["group"]
        except (AssertionError, subprocess.TimeoutExpired):
            return self._any()
        self.leaders.add(record["epoch"])
        return record["leader"]["node"] if record["leader"] else self._any()

    def _kill(self, number: int) -> None:
        if (name := f"node {number}") not in self._broken:
            self._group.nodes[number].kill()
            self._broken[name] = lambda: self._start(number)

    def _stop(self, number: int) -> None:
        """SIGTERM, whatever the group is able to do then."""
        if (name := f"node {number}") not in self._broken:
            self._group.nodes[number].stop()
            self._broken[name] = lambda: self._start(number)

    def _start(self, number: int) -> None:
        """Start a node, which needs an etcd for that."""
        if "etcd" in self._broken:
            self._mend("etcd")
        for name in [each for each in self._broken if each.startswith("member")]:
            self._mend(name)
        self._peers.wait()
        self._group.nodes[number].start()

    def _pause(self, number: int) -> None:
        if f"node {number}" not in self._broken:
            node = self._group.nodes[number]
            node.signal(signal.SIGSTOP)
            time.sleep(self._random.uniform(*PAUSE_SECONDS))
            node.signal(signal.SIGCONT)

    def _transfer(self, number: int) -> None:
        try:
            self._group.command("transfer", str(number))
        except AssertionError:
            pass  # Refused, because the node is not in sync: that is its right.

    # --- etcd ---

    def _kill_member(self, member: Member) -> None:
        # A majority is left.
        if not any(name.startswith("member") or name == "etcd" for name in self._broken):
            member.kill()
            self._broken[f"member {member.name}"] = member.start

    def _pause_member(self, member: Member) -> None:
        if member.process is not None and "etcd" not in self._broken:
            member.signal(signal.SIGSTOP)
            time.sleep(self._random.uniform(*PAUSE_SECONDS))
            member.signal(signal.SIGCONT)

    def _pause_etcd(self) -> None:
        """No etcd for a while: nothing changes in the group, and everything goes on."""
        if "etcd" in self._broken:
            return
        living = [member for member in self._peers.members if member.process is not None]
        for member in living:
            member.signal(signal.SIGSTOP)

        def go_on() -> None:
            for member in living:
                member.signal(signal.SIGCONT)

        self._broken["etcd"] = go_on
