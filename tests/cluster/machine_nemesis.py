"""What goes wrong with machines, beside what goes wrong with processes: links, in one direction too, and disks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import product

from bench.peers.etcd import EtcdPeers
from tests.cluster.group_processes import GroupProcesses
from tests.cluster.machines import Machine, Machines
from tests.cluster.nemesis import Nemesis

AT_ONCE = 3
SLOW_MS = (5, 50, 500)

Disk = Callable[[Machine], None]


class MachineNemesis(Nemesis):
    """Each node on a machine `n1` and so on, each member of etcd on one by its own name."""

    def __init__(self, group: GroupProcesses, peers: EtcdPeers, machines: Machines, seed: int) -> None:
        super().__init__(group, peers, seed, AT_ONCE)
        self._machines = machines
        self._of_nodes = {number: machines[f"n{number}"] for number in group.nodes}
        self._of_etcd = [machines[member.name] for member in peers.members]
        self.faults |= {
            "leader unplugged": lambda: self._unplug(self._of_nodes[self._leader()]),
            "node unplugged": lambda: self._unplug(self._of_nodes[self._any()]),
            "member of etcd unplugged": lambda: self._unplug(self._random.choice(self._of_etcd)),
            "link cut": self._cut,
            "link cut one way": self._cut_one_way,
            "leader cut from its followers": self._cut_leader,
            "node cut from etcd": lambda: self._lose(
                "from etcd", product([self._of_nodes[self._any()]], self._of_etcd)
            ),
            "disk full": lambda: self._break_disk(lambda machine: machine.fill(self._random.choice((0, 100_000)))),
            "disk slow": lambda: self._break_disk(lambda machine: machine.slow(self._random.choice(SLOW_MS))),
            "disk hung": lambda: self._break_disk(Machine.hang),
            "disk failing": lambda: self._break_disk(Machine.fail),
        }

    def _look_after(self) -> None:
        for number, node in self._group.nodes.items():
            if node.has_ended:
                # Its disk was full or failed: it says why, and a supervisor starts it again.
                node.wait()
                self.done["ended by itself"] += 1
                self._broken.setdefault(f"node {number}", lambda number=number: self._start(number))  # type: ignore[misc]

    def _start(self, number: int) -> None:
        """Start a node, which needs a disk and an etcd for that, and whoever leads."""
        for name in [each for each in self._broken if each.startswith(("disk", "link", "machine"))]:
            self._mend(name)
        super()._start(number)

    def _stop(self, number: int) -> None:
        # One whose disk does not answer cannot stop cleanly.
        if f"disk {number}" not in self._broken and not self._group.nodes[number].has_ended:
            super()._stop(number)

    # --- links ---

    def _unplug(self, machine: Machine) -> None:
        if (name := f"machine {machine.name}") not in self._broken:
            machine.unplug()
            self._broken[name] = machine.plug

    def _cut(self) -> None:
        one, other = self._random.sample(list(self._of_nodes.values()), 2)
        self._lose(f"{one.name}-{other.name}", [(one, other), (other, one)])

    def _cut_one_way(self) -> None:
        one, other = self._random.sample([*self._of_nodes.values(), *self._of_etcd], 2)
        self._lose(f"{one.name}>{other.name}", [(one, other)])

    def _cut_leader(self) -> None:
        leader = self._of_nodes[self._leader()]
        others = [each for each in self._of_nodes.values() if each is not leader]
        self._lose(f"around {leader.name}", [*product([leader], others), *product(others, [leader])])

    def _lose(self, name: str, links: Iterable[tuple[Machine, Machine]]) -> None:
        # One at a time, so that what one mends was not broken by another.
        if any(each.startswith("link") for each in self._broken):
            return
        lost = list(links)
        for source, target in lost:
            source.lose(target)

        def heal() -> None:
            for source, target in lost:
                source.reach(target)

        self._broken[f"link {name}"] = heal

    # --- disks ---

    def _break_disk(self, fault: Disk) -> None:
        number = self._leader() if self._random.random() < 0.5 else self._any()
        machine = self._of_nodes[number]
        if (name := f"disk {number}") not in self._broken:
            fault(machine)

            def mend() -> None:
                machine.slow(0)
                machine.make_room()

            self._broken[name] = mend
