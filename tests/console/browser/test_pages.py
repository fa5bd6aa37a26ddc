"""Every page opens, in one page load, without an error, and can be used by everyone."""

from __future__ import annotations

import json
import time

import pytest
from bench.peers import Missing
from bench.peers.axe import find
from playwright.sync_api import Page
from tests.console.browser.conftest import Open, Running

HEADINGS = {
    "Alerts": "Alerts",
    "Topics": "Topics",
    "Messages": "Messages",
    "Dead letters": "Dead letters",
    "Timers": "Timers",
    "Transactions": "Transactions",
    "Queues": "Queues",
    "Groups": "Groups",
    "Apps": "Apps",
    "Clients": "Clients",
    "Pipeline": "Pipeline",
    "Users and rights": "Users and rights",
    "Cluster": "Cluster",
    "Overview": "Overview",
}
JUDGED = [
    *("", "/topics", "/topic?name=orders", "/topic?name=orders&tab=messages", "/topic?name=orders&tab=settings"),
    *("/queues", "/queue?topic=orders&name=mail", "/groups", "/group?name=billing", "/messages", "/alerts", "/clients"),
    *("/dead-letters", "/cluster", "/apps", "/queue?topic=orders&name=mail&tab=messages", "/life?id=orders/0/0"),
    *("/access", "/access?tab=rights", "/access?tab=check", "/access?tab=audit"),
]


def test_every_page_opens_without_loading_anew(page: Page) -> None:
    page.evaluate("window.sameLoad = true")
    took = {}
    for link, heading in HEADINGS.items():
        began = time.monotonic()
        page.get_by_role("navigation", name="Pages").get_by_role("link", name=link, exact=True).click()
        page.locator("h1", has_text=heading).wait_for()
        took[link] = time.monotonic() - began
    assert page.evaluate("window.sameLoad") is True
    # For those who look: nothing is asserted of a busy machine.
    print({link: f"{seconds * 1000:.0f} ms" for link, seconds in took.items()})


def test_shortcuts_lead_everywhere(page: Page) -> None:
    page.keyboard.press("g")
    page.keyboard.press("t")
    page.locator("h1", has_text="Topics").wait_for()
    page.keyboard.press("/")
    page.keyboard.type("pay")
    page.get_by_role("link", name="payments", exact=True).wait_for()
    page.get_by_role("link", name="orders", exact=True).wait_for(state="hidden")
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    page.get_by_role("heading", name="Keyboard").wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("heading", name="Keyboard").wait_for(state="hidden")


def test_times_have_the_viewers_zone(open_page: Open, console: Running) -> None:
    for zone, offset in (("Asia/Kolkata", "+05:30"), ("UTC", "UTC")):
        page = open_page(f"{console.url}/local/topic?name=orders&tab=messages", timezone_id=zone)
        page.get_by_role("cell").filter(has_text=offset).first.wait_for()


def test_a_phone_has_a_menu_and_no_sideways_scroll(open_page: Open, console: Running) -> None:
    page = open_page(f"{console.url}/local/topics", viewport={"width": 390, "height": 800})
    page.get_by_role("link", name="orders", exact=True).wait_for()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.get_by_role("button", name="Menu").click()
    page.get_by_role("link", name="Groups", exact=True).click()
    page.locator("h1", has_text="Groups").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    for path in ("/queue?topic=orders&name=mail&tab=messages", "/life?id=orders/0/0", "/access?tab=rights"):
        page.goto(f"{console.url}/local{path}")
        page.locator("h1").first.wait_for()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path


def test_dark_and_light_follow_the_system_until_they_are_chosen(open_page: Open, console: Running) -> None:
    page = open_page(console.url, color_scheme="dark")
    page.wait_for_function("document.body.classList.contains('body--dark')")
    page.get_by_role("button", name="Theme").click()
    page.get_by_role("button", name="Theme: dark").click()
    page.wait_for_function("!document.body.classList.contains('body--dark')")
    page.reload()
    page.get_by_role("heading", name="Overview").wait_for()
    page.wait_for_function("!document.body.classList.contains('body--dark')")


def test_nothing_is_loaded_from_elsewhere(open_page: Open, console: Running) -> None:
    page = open_page("about:blank")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(console.url)
    page.get_by_role("heading", name="Overview").wait_for()
    assert asked
    assert not [
        each for each in asked if not each.startswith((console.url, "data:", console.url.replace("http", "ws")))
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(open_page: Open, console: Running, scheme: str) -> None:
    try:
        axe = find().read_text()
    except Missing as missing:
        pytest.skip(str(missing))
    # The policy of the console forbids what it did not send.
    page = open_page(console.url, color_scheme=scheme, bypass_csp=True)
    page.get_by_role("heading", name="Overview").wait_for()
    found = {}
    for path in JUDGED:
        page.goto(f"{console.url}/local{path}")
        page.locator("h1").first.wait_for()
        page.evaluate(axe)
        result = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        serious = [each for each in result["violations"] if each["impact"] in ("serious", "critical")]
        if serious:
            found[path] = [(each["id"], [node["html"][:160] for node in each["nodes"][:3]]) for each in serious]
    assert not found, json.dumps(found, indent=1)
