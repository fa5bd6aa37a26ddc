"""What it costs a broker to be watched: its CPU without a console, with one that nobody looks at, and with watchers.

    python -m bench.console --topics 10000 --watchers 10 --seconds 30

Watchers are pages of a real Chromium, each on the overview. Pages ask the broker for nothing by themselves: one sampler
does, for all of them.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic
from tests.console.browser.conftest import FLAGS, Running
from tests.serve_process import ServeProcess

BATCH = 1_000


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(name: str, pid: int, seconds: float) -> None:
    """Print how much of a core a process takes."""
    before, began = cpu_seconds(pid), time.monotonic()
    time.sleep(seconds)
    share = (cpu_seconds(pid) - before) / (time.monotonic() - began)
    print(f"{name:<34} {share * 100:6.2f}% of a core", flush=True)


@contextmanager
def watchers(url: str, number: int) -> Iterator[None]:
    """Pages that are open on the overview."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        for _ in range(number):
            page = browser.new_page()
            page.goto(url)
            page.wait_for_function("window.socket?.connected")
        yield
        browser.close()


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--topics", type=int, default=10_000)
    asked.add_argument("--watchers", type=int, default=10)
    asked.add_argument("--seconds", type=float, default=30.0)
    given = asked.parse_args()
    folder = Path(tempfile.mkdtemp())
    try:
        with ServeProcess(folder / "data", "--http", "127.0.0.1:0", "--durability", "async") as broker:
            admin = AdminClient({"bootstrap.servers": broker.kafka})
            for begin in range(0, given.topics, BATCH):
                wanted = [NewTopic(f"topic-{n:05}", 1, 1) for n in range(begin, min(begin + BATCH, given.topics))]
                for done in admin.create_topics(wanted).values():
                    done.result(60)
            del admin
            measure("the broker alone", broker.pid, given.seconds)
            console = Running(folder / "console", f"local={broker.addresses['http']}")
            time.sleep(5)
            measure("with a console", broker.pid, given.seconds)
            with watchers(f"{console.url}/local", given.watchers):
                measure(f"with {given.watchers} watchers", broker.pid, given.seconds)
                measure("the console itself, then", console.pid, given.seconds)
            console.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
