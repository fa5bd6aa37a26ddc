"""Those who watch: pages of a console, over sockets as a browser's, and in a real Chromium.

A machine with two cores cannot run fifty browsers and a broker that is measured. What costs the console, and through it
the broker, is the same for a socket that takes what a page is pushed; what it costs a person is asked of a real page.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import aiohttp
import socketio

from bench.peers import cpu_between, cpu_seconds, resident_mb

FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking")
CLIENT = re.compile(r"""['"]client_id['"]: ['"]([^'"]+)['"]""")
CLICK = """async ([path, heading]) => {
  const link = [...document.querySelectorAll('nav a, a')].find((a) => a.getAttribute('href') === path);
  const began = performance.now();
  link.click();
  while (!(document.querySelector('h1')?.innerText ?? '').startsWith(heading)
      || location.pathname !== path) {
    await new Promise((next) => requestAnimationFrame(next));
    if (performance.now() - began > 10000) throw new Error(`${path} does not come`);
  }
  return performance.now() - began;
}"""
PAGES = (
    ("/topics", "Topics"),
    ("/queues", "Queues"),
    ("/groups", "Groups"),
    ("/dead-letters", "Dead letters"),
    ("/clients", "Clients"),
    ("/alerts", "Alerts"),
    ("", "Overview"),
)


class Sockets:
    """Pages that are open, as far as a console sees."""

    def __init__(self, url: str, path: str) -> None:
        self.updates = 0
        """What they were pushed."""
        self._url = url
        self._path = path
        self._clients: list[socketio.AsyncClient] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def open(self, number: int) -> None:
        asyncio.run_coroutine_threadsafe(self._open(number), self._loop).result(120)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _open(self, number: int) -> None:
        for _ in range(number):
            async with aiohttp.ClientSession() as session, session.get(self._url + self._path) as page:
                found = CLIENT.search(await page.text())
            assert found is not None, "the page has no socket"
            query = {"client_id": found[1], "next_message_id": 0, "implicit_handshake": "true"}
            query |= {"tab_id": str(uuid.uuid4()), "document_id": str(uuid.uuid4())}
            client = socketio.AsyncClient(reconnection=False)
            client.on("update", self._take)
            words = "&".join(f"{name}={value}" for name, value in query.items())
            await client.connect(
                f"{self._url}?{words}",
                headers={"Origin": self._url},
                transports=["websocket"],
                socketio_path="/_nicegui_ws/socket.io",
                wait_timeout=30,
            )
            self._clients.append(client)

    async def _take(self, *_: Any) -> None:
        self.updates += 1

    async def _close(self) -> None:
        for client in self._clients:
            await client.disconnect()


@contextmanager
def watching(url: str, path: str, number: int) -> Iterator[Sockets]:
    """So many pages."""
    sockets = Sockets(url, path)
    try:
        sockets.open(number)
        yield sockets
    finally:
        sockets.close()


class Browser:
    """A real Chromium with one page."""

    def __init__(self, page: Any, pid: int) -> None:
        self._page = page
        self._pid = pid

    @property
    def nodes(self) -> int:
        return int(self._page.evaluate("document.getElementsByTagName('*').length"))

    @property
    def heap_mb(self) -> float:
        """Of the page's own JavaScript."""
        return float(self._page.evaluate("performance.memory.usedJSHeapSize")) / 1e6

    @property
    def memory_mb(self) -> float:
        """Of all its processes."""
        return resident_mb(self._pid)

    def cpu(self, seconds: float) -> float:
        """The share of a core that it takes to show what comes."""
        before, began = cpu_seconds(self._pid), time.monotonic()
        self._page.wait_for_timeout(seconds * 1000)
        return cpu_between(before, cpu_seconds(self._pid)) / (time.monotonic() - began)

    def navigate(self, broker: str, rounds: int) -> dict[str, tuple[float, float]]:
        """By page: milliseconds from the click to its heading, the median and the most."""
        taken: dict[str, list[float]] = {}
        for _ in range(rounds):
            for path, heading in PAGES:
                took = float(self._page.evaluate(CLICK, [f"/{broker}{path}", heading]))
                taken.setdefault(heading, []).append(took)
        return {heading: (median(each), max(each)) for heading, each in taken.items()}


@contextmanager
def chromium(url: str) -> Iterator[Browser]:
    """A page of a real browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=[*FLAGS, "--enable-precise-memory-info"]
        )
        session = browser.new_browser_cdp_session()
        processes = session.send("SystemInfo.getProcessInfo")["processInfo"]
        pid = next(int(each["id"]) for each in processes if each["type"] == "browser")
        page = browser.new_page(viewport={"width": 1280, "height": 860})
        page.goto(url)
        page.wait_for_function("window.socket?.connected")
        yield Browser(page, pid)
        browser.close()
