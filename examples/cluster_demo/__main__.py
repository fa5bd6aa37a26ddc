"""`make cluster-demo`: three nodes and an etcd on loopback, clients at work, and one fault after another.

A leader is killed, handed over and stopped, a follower hangs, etcd is away. For each the demo shows how long producers
waited, and in the end every number is checked against what was sent.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from examples.cluster_demo.clients import ORDERS, REMIND_SECONDS, REMINDERS, Reader, Shop, create_topics, read_whole
from examples.cluster_demo.nodes import Cluster
from examples.demo import report
from headrace.errors import HeadraceError

# Between two faults.
CALM_SECONDS = 3.0
ETCD_AWAY_SECONDS = 5.0
HANGS_SECONDS = 6.0


class Demo:
    """The faults, each with what clients saw of it."""

    def __init__(self, console: Console, cluster: Cluster, shop: Shop, found: report.Report) -> None:
        self._console = console
        self._cluster = cluster
        self._shop = shop
        self._report = found
        self.leader, self.epoch = cluster.leader(3)

    def run(self, title: str, fault: Callable[[], str]) -> None:
        """Let a fault happen, and show how long no order was acknowledged."""
        time.sleep(CALM_SECONDS)
        since = time.monotonic()
        end = fault()
        self._await_more()
        gap = self._shop.gap(since)
        self._report.figure(title, f"producers waited {gap:.2f} s; {end}")
        self._console.print(f"  {title}: producers waited [bold]{gap:.2f} s[/bold]; {end}", highlight=False)

    def _await_more(self) -> None:
        """Wait for orders that were sent from now on."""
        least = self._shop.sent
        until = time.monotonic() + 60
        while not any(number >= least for _, number in self._shop.acknowledged[-500:]):
            if time.monotonic() > until:
                raise HeadraceError("no order is acknowledged any more: look into the logs of the nodes")
            time.sleep(0.01)

    def _led_by(self, in_sync: int, is_it: Callable[[int], bool]) -> str:
        self.leader, self.epoch = self._cluster.leader(in_sync, is_it)
        return f"node {self.leader} leads in epoch {self.epoch}"

    def kill(self) -> str:
        """kill -9 of the leader."""
        killed, node = self.leader, self._cluster.nodes[self.leader]
        node.signal(signal.SIGKILL)
        node.wait()
        end = self._led_by(2, lambda leader: leader != killed)
        node.start()
        self._cluster.leader(3)
        return f"{end}, node {killed} is in sync again"

    def transfer(self) -> str:
        """A planned handover."""
        to = next(number for number in self._cluster.nodes if number != self.leader)
        self._cluster.command("transfer", str(to))
        return self._led_by(3, lambda leader: leader == to)

    def stop(self) -> str:
        """SIGTERM of the leader, as an upgrade does it."""
        stopped, node = self.leader, self._cluster.nodes[self.leader]
        node.signal(signal.SIGTERM)
        status = node.wait()
        end = self._led_by(2, lambda leader: leader != stopped)
        node.start()
        self._cluster.leader(3)
        self._report.check("a node that is stopped ends with status 0", 0, status)
        return end

    def hang(self) -> str:
        """A follower that neither answers nor closes its connections."""
        number = next(number for number in self._cluster.nodes if number != self.leader)
        self._cluster.nodes[number].signal(signal.SIGSTOP)
        time.sleep(HANGS_SECONDS)
        self._cluster.nodes[number].signal(signal.SIGCONT)
        end = self._led_by(3, lambda leader: True)
        return f"node {number} left the ISR, and is back; {end}"

    def etcd_away(self) -> str:
        """An etcd that is killed."""
        [member] = self._cluster.etcd.members
        member.kill()
        time.sleep(ETCD_AWAY_SECONDS)
        member.start()
        self._cluster.etcd.wait()
        return self._led_by(3, lambda leader: True)


def play(console: Console, folder: Path) -> report.Report:
    """All of it."""
    found = report.Report("A group of three", "acks=all, sync")
    with Cluster(folder) as cluster:
        leader, epoch = cluster.leader(3)
        console.print(f"nodes 1, 2 and 3 run; node {leader} leads in epoch {epoch}; {cluster.url}", highlight=False)
        create_topics(cluster.bootstrap)
        members = [Reader(cluster.bootstrap, "packers", ORDERS) for _ in range(2)]
        reminder = Reader(cluster.bootstrap, "reminders", REMINDERS)
        shop = Shop(cluster.bootstrap)
        demo = Demo(console, cluster, shop, found)
        demo.run("leader killed", demo.kill)
        demo.run("leadership handed over", demo.transfer)
        demo.run("leader stopped", demo.stop)
        demo.run("follower hung", demo.hang)
        demo.run("etcd away", demo.etcd_away)
        time.sleep(CALM_SECONDS)
        shop.stop()
        console.print("  what is in the topics is compared with what was sent")
        time.sleep(REMIND_SECONDS + 1)
        acknowledged = {number for _, number in shop.acknowledged}
        orders = read_whole(cluster.bootstrap, ORDERS, len(acknowledged))
        reminders = read_whole(cluster.bootstrap, REMINDERS, len(shop.reminded))
        for reader in (*members, reminder):
            reader.stop()
        seen = {number for member in members for number in member.found}
        early = [
            number
            for number, due in shop.reminded.items()
            for _, _, at in reminder.found.get(number, ())
            if at < due - 0.001
        ]
        found.figure("orders acknowledged", len(acknowledged))
        found.figure("reminders", len(shop.reminded))
        found.check("no order failed", [], shop.failed)
        found.check("every order that was sent is acknowledged", shop.sent, len(acknowledged))
        found.check("each of them is in the topic, once", dict.fromkeys(acknowledged, 1), dict(orders))
        found.check("the group has read all of them", acknowledged, seen)
        found.check("each customer's in order", 0, sum(member.regressed for member in members))
        found.check("each reminder is delivered, once", dict.fromkeys(shop.reminded, 1), dict(reminders))
        found.check("no reminder early", [], early)
        found.check("all three nodes are in sync", 3, len(cluster.group()["isr"]))
    return found


def main() -> int:
    console = Console()
    begun = time.perf_counter()
    with TemporaryDirectory(prefix="headrace-cluster-demo-") as folder:
        found = play(console, Path(folder))
    found.seconds = time.perf_counter() - begun
    report.show(console, [found])
    if found.faults:
        console.print(f"[red]{len(found.faults)} of the numbers are wrong.[/red]")
        return 1
    console.print(f"[green]All {len(found.checks)} checks hold[/green], in {found.seconds:.0f} s.")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except HeadraceError as error:
        sys.exit(f"cluster-demo: {error}")
