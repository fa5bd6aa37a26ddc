"""A broker with something in it, a console for it, and a real Chromium."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from tests.serve_process import ServeProcess
from tests.waiting import wait_until

pytest.importorskip("playwright")
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser") or ""
FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"),
    *("--disable-sync", "--disable-dev-shm-usage", "--font-render-hinting=none"),
]
SECONDS = int(os.environ.get("BROWSER_SECONDS", "40")) * 1000
ORDERS = 60
ZONE = "Europe/Berlin"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.browser)
            if not CHROMIUM:
                item.add_marker(pytest.mark.skip("there is no Chromium: Debian's package is chromium"))


class Http:
    """The broker's REST API, for what the console should have done."""

    def __init__(self, address: str) -> None:
        self.address = address

    def __call__(self, method: str, path: str, body: object = None) -> Any:
        content = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"http://{self.address}{path}", content, headers, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def is_missing(self, path: str) -> bool:
        try:
            self("GET", path)
        except urllib.error.HTTPError as error:
            return error.code == 404
        return False


class Running:
    """`headrace console` as a process."""

    def __init__(self, data: Path, brokers: str, *flags: str, listen: str = "127.0.0.1:0") -> None:
        command = [sys.executable, "-m", "headrace.cli", "console", "--data", str(data), "--brokers", brokers]
        self._log = data.with_suffix(".log")
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [*command, "--listen", listen, *flags], stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line.startswith("ready console="), self._log.read_text()
        self.address = line.split("=", 1)[1].strip()
        self.url = f"http://{self.address}"

    @property
    def pid(self) -> int:
        return self._process.pid

    def stop(self) -> str:
        """Stop it; what it logged."""
        self._process.terminate()
        assert self._process.wait(30) == 0
        assert self._process.stdout is not None
        self._process.stdout.close()
        return self._log.read_text()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    with ServeProcess(
        tmp_path_factory.mktemp("broker") / "data", "--http", "127.0.0.1:0", "--nsq", "127.0.0.1:0"
    ) as it:
        yield it


@pytest.fixture(scope="session")
def http(broker: ServeProcess) -> Http:
    return Http(broker.addresses["http"])


@pytest.fixture(scope="session")
def filled(broker: ServeProcess, http: Http) -> Http:
    """Orders with keys, a group that is behind, and a queue."""
    http("PUT", "/v1/topics/orders", {"partitions": 3})
    http("PUT", "/v1/topics/payments", {"partitions": 1})
    http("PUT", "/v1/topics/orders/queues/mail", {"from": "earliest"})
    producer = Producer({"bootstrap.servers": broker.kafka})
    for number in range(ORDERS):
        value = {"id": number, "customer": {"id": number % 7, "name": "Ann"}, "state": "new"}
        producer.produce("orders", json.dumps(value), key=str(number), headers=[("trace", f"{number:032x}".encode())])
    assert producer.flush(30) == 0
    consumer = Consumer(
        {"bootstrap.servers": broker.kafka, "group.id": "billing", "auto.offset.reset": "earliest"}
        | {"enable.auto.commit": False}
    )
    consumer.subscribe(["orders"])
    read = wait_until(lambda: consumer.consume(5, 1.0), turn=lambda: None)
    assert read
    consumer.commit(asynchronous=False)
    consumer.close()
    return http


@pytest.fixture(scope="session")
def console(broker: ServeProcess, filled: Http, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    running = Running(tmp_path_factory.mktemp("console") / "data", f"local={broker.addresses['http']}")
    yield running
    said = running.stop()
    assert "Traceback" not in said, said


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


Open = Callable[..., Page]


@pytest.fixture
def open_page(chromium: Browser) -> Iterator[Open]:
    """Open pages, each as another person would: none may log an error."""
    contexts: list[BrowserContext] = []
    errors: list[str] = []

    def open_(url: str, allowed: Sequence[str] = (), **options: Any) -> Page:
        context = chromium.new_context(
            **{"viewport": {"width": 1280, "height": 860}, "timezone_id": ZONE, "reduced_motion": "reduce"} | options
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(SECONDS)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda line: _note(line.type, line.text, errors, allowed))
        page.goto(url)
        return page

    yield open_
    for context in contexts:
        context.close()
    assert not errors


def _note(kind: str, words: str, errors: list[str], allowed: Sequence[str]) -> None:
    if kind == "error" and not any(each in words for each in allowed):
        errors.append(words)


@pytest.fixture
def page(open_page: Open, console: Running) -> Page:
    """The overview."""
    shown = open_page(console.url)
    shown.get_by_role("heading", name="Overview").wait_for()
    shown.wait_for_function("window.socket?.connected")
    return shown
