"""What people come for, in at most four clicks from the overview; and the pictures of docs/console.md."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from confluent_kafka import Consumer, Producer
from playwright.sync_api import Page, expect
from tests.console.browser.conftest import Http, Open, Running
from tests.serve_process import ServeProcess
from tests.waiting import wait_until

CLICKS_MAX = 4
TIMEOUTS = 30
IMAGES = Path(__file__).parents[3] / "docs" / "images"


@pytest.fixture
def clicks(page: Page) -> Callable[[], int]:
    """How often the person clicked since the overview was opened; Enter in a form makes clicks without a mouse."""
    page.evaluate("window.clicked = 0; document.addEventListener('click', (e) => e.detail && window.clicked++, true)")
    return lambda: int(page.evaluate("window.clicked"))


@pytest.fixture(scope="session")
def letters(broker: ServeProcess, filled: Http) -> Http:
    """Thirty letters that died of a timeout, and five of something else."""
    filled("PATCH", "/v1/topics/orders/queues/mail", {"settings": {"dead_letter_topic": "orders.mail.dead"}})
    filled("PUT", "/v1/topics/orders.mail.dead", {"partitions": 1})
    producer = Producer({"bootstrap.servers": broker.kafka})
    for number in range(TIMEOUTS + 5):
        error = "timeout" if number < TIMEOUTS else "bad address"
        headers = {
            "headrace-origin-topic": "orders",
            "headrace-origin-partition": "0",
            "headrace-origin-offset": "0",
            "headrace-origin-queue": "mail",
            "headrace-attempts": "5",
            "headrace-error": error,
            "headrace-dead-at": "1795000000000",
        }
        producer.produce("orders.mail.dead", f"letter {number}", key=f"k{number}", headers=list(headers.items()))
    assert producer.flush(30) == 0
    return filled


def test_why_a_group_is_behind(page: Page, clicks: Callable[[], int]) -> None:
    page.locator("main").get_by_role("link", name="billing", exact=True).first.click()
    page.get_by_text("Nobody reads: the group has no members. Start its consumers.").wait_for()
    assert clicks() <= CLICKS_MAX


def test_find_order_42_and_its_life(page: Page, clicks: Callable[[], int]) -> None:
    page.keyboard.press("/")
    page.keyboard.type("42")
    page.keyboard.press("Enter")
    row = page.get_by_role("row").filter(has_text="orders/")
    row.first.wait_for()
    row.get_by_role("link", name="Its life").first.click()
    page.get_by_role("heading", name="orders/").wait_for()
    page.locator("ol.life").get_by_text("Published").first.wait_for()
    page.get_by_role("table", name="Who reads these messages").get_by_text("orders/mail").wait_for()
    assert clicks() <= CLICKS_MAX


def test_redrive_the_thirty_that_failed_with_timeout(letters: Http, page: Page, clicks: Callable[[], int]) -> None:
    before = letters("GET", "/v1/topics/orders")["messages"]
    page.get_by_role("link", name="Dead letters", exact=True).first.click()
    page.get_by_role("link", name="timeout", exact=True).click()
    page.get_by_role("button", name=f"Redrive these {TIMEOUTS}").click()
    page.get_by_role("dialog").last.get_by_role("button", name="Redrive", exact=True).click()
    page.get_by_text(f"{TIMEOUTS} letters of {TIMEOUTS} sent back.").wait_for()
    assert clicks() <= CLICKS_MAX
    assert page.get_by_role("row").filter(has_text="redriven").count() == TIMEOUTS
    assert letters("GET", "/v1/topics/orders")["messages"] == before + TIMEOUTS
    waiting = letters("GET", "/v1/dead-letters/orders.mail.dead")["kinds"]
    assert [(each["error"], each["count"]) for each in waiting if each["count"]][-1][0] == "bad address"


APP = """
import sys
from headrace.sdk import App

app = App("shop.orders", sys.argv[1], owner="team-orders", description="takes and pays orders")


@app.subscribe("payments", scenario="task", workers=8)
async def pay(order: dict) -> None:
    pass


app.run()
"""


@pytest.fixture
def shop(broker: ServeProcess, filled: Http) -> Iterator[str]:
    """An application of the framework, in a process of its own."""
    places = broker.addresses
    url = f"headrace://{broker.kafka}?nsq={places['nsq']}&http={places['http']}"
    running = subprocess.Popen([sys.executable, "-c", APP, url], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until(lambda: filled("GET", "/v1/apps?search=shop.orders")["total"])
    yield "shop.orders"
    running.terminate()
    running.wait(30)


def workers(http: Http, app: str) -> list[object]:
    return [each["value"] for each in http("GET", f"/v1/apps/{app}")["live"] if each["setting"] == "workers"]


def test_double_the_workers_of_an_app_and_undo_it(
    page: Page, clicks: Callable[[], int], filled: Http, shop: str
) -> None:
    page.keyboard.press("/")
    page.keyboard.type(shop)
    page.keyboard.press("Enter")
    page.get_by_role("link", name=shop, exact=True).click()
    page.get_by_role("button", name="Change a setting").click()
    form = page.get_by_role("dialog").last
    value = form.get_by_label("Value", exact=True)
    expect(value).to_have_value("8")
    value.fill("16")
    value.press("Enter")
    wait_until(lambda: workers(filled, shop) == [16])
    page.get_by_role("cell", name="the code's → 16").wait_for()
    assert clicks() <= CLICKS_MAX
    page.get_by_role("button", name="Undo workers").first.click()
    page.get_by_role("dialog").last.get_by_role("button", name="Undo").click()
    wait_until(lambda: workers(filled, shop) == [])
    assert clicks() <= CLICKS_MAX


def work(kafka: str, seconds: float) -> None:
    """What charts show in the pictures: orders come, and billing reads too few of them."""
    producer = Producer({"bootstrap.servers": kafka, "linger.ms": 20})
    settings = {"bootstrap.servers": kafka, "group.id": "billing", "client.id": "billing-1"}
    consumer = Consumer(settings)
    consumer.subscribe(["orders"])
    end, number = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        for _ in range(random.randint(15, 25)):
            number += 1
            value = {"id": number, "customer": {"id": number % 7, "name": "Ann"}, "state": "new"}
            producer.produce("orders", json.dumps(value), key=str(number))
        producer.poll(0)
        consumer.consume(12, 0.2)
        time.sleep(0.2)
    consumer.close()
    producer.flush(30)


def test_pictures_for_the_docs(
    broker: ServeProcess, letters: Http, open_page: Open, console: Running, tmp_path: Path
) -> None:
    if os.environ.get("PICTURES"):
        # A chart needs some minutes to have something to show, and the group its member.
        threading.Thread(target=work, args=(broker.kafka, 200.0), daemon=True).start()
        time.sleep(170)
    folder = IMAGES if os.environ.get("PICTURES") else tmp_path
    folder.mkdir(exist_ok=True)
    size = {"width": 1180, "height": 760}
    for name, path, scheme in (
        ("console-overview", "", "light"),
        ("console-group", "/group?name=billing", "dark"),
        ("console-messages", f"/topic?name=orders&tab=messages&where={quote('value.customer.id = 3')}", "light"),
    ):
        page = open_page(f"{console.url}/local{path}", viewport=size, color_scheme=scheme)
        page.locator("h1").wait_for()
        page.wait_for_function("window.socket?.connected")
        # Charts have their first figures within ten seconds.
        expect(page.get_by_text("No figures yet")).to_have_count(0)
        file = folder / f"{name}.png"
        page.screenshot(path=file)
        assert 5_000 < file.stat().st_size < 250_000
        expect(page.locator(".note-box.bad[role=alert]")).to_have_count(0)
