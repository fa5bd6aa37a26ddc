"""Several people: logging in, roles, two at once, and a broker that goes away and comes back."""

from __future__ import annotations

import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from tests.console.browser.conftest import Http, Open, Running
from tests.serve_process import ServeProcess

PASSWORD = "correct horse battery"
REFUSED = ("403",)


@pytest.fixture
def guarded(broker: ServeProcess, filled: Http, tmp_path: Path) -> Iterator[Running]:
    """A console with a viewer, a reader and an operator of its own."""
    data = tmp_path / "data"
    for name in ("viewer", "reader", "operator"):
        command = [sys.executable, "-m", "headrace.cli", "console", "--data", str(data), "--add-user", name]
        subprocess.run([*command, "--role", name], input=PASSWORD + "\n", text=True, check=True)
    running = Running(data, f"local={broker.addresses['http']}")
    yield running
    assert "Traceback" not in running.stop()


def log_in(page: Page, name: str, password: str = PASSWORD) -> None:
    page.get_by_label("Name").fill(name)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Log in").click()


def test_who_does_not_log_in_sees_nothing(open_page: Open, guarded: Running) -> None:
    page = open_page(f"{guarded.url}/local/topics", REFUSED)
    page.get_by_role("heading", name="Log in").wait_for()
    log_in(page, "operator", "wrong password")
    page.get_by_role("alert").wait_for()
    log_in(page, "operator")
    # It leads back to where the person wanted to go.
    page.locator("h1", has_text="Topics").wait_for()
    assert "headrace_console" not in page.evaluate("document.cookie")
    page.get_by_role("button", name="Log out").click()
    page.get_by_role("heading", name="Log in").wait_for()
    page.goto(f"{guarded.url}/local/topics")
    page.get_by_role("heading", name="Log in").wait_for()


def test_a_form_of_another_site_changes_nothing(guarded: Running) -> None:
    body = urllib.parse.urlencode({"user": "operator", "password": PASSWORD}).encode()
    for headers in ({"Origin": "http://evil.example"}, {}, {"Origin": guarded.url, "Host": "evil.example"}):
        request = urllib.request.Request(f"{guarded.url}/login", body, headers)
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request)
        assert refused.value.code == 403


def test_a_viewer_sees_live_what_an_operator_does_and_can_do_nothing(
    open_page: Open, guarded: Running, filled: Http
) -> None:
    viewer, operator = (open_page(f"{guarded.url}/local/queues", REFUSED) for _ in range(2))
    log_in(viewer, "viewer")
    log_in(operator, "operator")
    viewer.get_by_role("link", name="mail", exact=True).click()
    operator.get_by_role("link", name="mail", exact=True).click()
    for page in (viewer, operator):
        page.locator("h1", has_text="mail").wait_for()
    for name in ("Pause", "Empty", "Delete queue"):
        expect(viewer.get_by_role("button", name=name)).to_be_disabled()
        expect(operator.get_by_role("button", name=name)).to_be_enabled()
    # Whoever makes the button work in the browser is not heard.
    viewer.evaluate("document.querySelectorAll('button[data-do=pause]').forEach((b) => (b.disabled = false))")
    viewer.get_by_role("button", name="Pause").click()
    viewer.get_by_role("link", name="Messages", exact=True).last.click()
    viewer.get_by_text("You may not read messages").wait_for()
    assert filled("GET", "/v1/topics/orders/queues/mail")["paused"] is False

    viewer.get_by_role("link", name="Overview", exact=True).last.click()
    ready = viewer.locator(".stat", has_text="Ready").locator(".value")
    before = int(ready.inner_text())
    operator.goto(f"{guarded.url}/local/topic?name=orders")
    operator.get_by_role("button", name="Produce").click()
    form = operator.get_by_role("dialog").last
    form.get_by_label("Value", exact=True).fill("one more")
    form.get_by_role("button", name="Publish").click()
    expect(ready).to_have_text(str(before + 1))


def test_a_reader_reads_and_changes_nothing(open_page: Open, guarded: Running) -> None:
    page = open_page(f"{guarded.url}/local/topic?name=orders&tab=messages", REFUSED)
    log_in(page, "reader")
    page.goto(f"{guarded.url}/local/topic?name=orders&tab=messages")
    page.get_by_role("button", name="Open message").first.wait_for()
    expect(page.get_by_role("button", name="Produce")).to_be_disabled()


def test_the_broker_goes_away_and_comes_back(open_page: Open, tmp_path: Path) -> None:
    with ServeProcess(tmp_path / "broker", "--http", "127.0.0.1:0") as broker:
        address = broker.addresses["http"]
        http = Http(address)
        http("PUT", "/v1/topics/tea", {})
        console = Running(tmp_path / "console", f"local={address}")
        page = open_page(f"{console.url}/local")
        page.get_by_role("link", name="tea", exact=True).wait_for()
        broker.kill()
        banner = page.get_by_role("status").filter(has_text="does not answer since")
        banner.wait_for()
        page.get_by_role("link", name="Topics", exact=True).click()
        page.get_by_role("heading", name="The broker does not answer").wait_for()
        again = ServeProcess(tmp_path / "broker", "--http", address)
        again.kafka = broker.kafka
        with again:
            banner.wait_for(state="hidden")
            # The page that could not be shown is there without a click.
            page.get_by_role("link", name="tea", exact=True).wait_for()
        page.close()
        console.stop()


def test_one_console_watches_two_brokers(open_page: Open, broker: ServeProcess, filled: Http, tmp_path: Path) -> None:
    with ServeProcess(tmp_path / "other", "--http", "127.0.0.1:0") as other:
        Http(other.addresses["http"])("PUT", "/v1/topics/elsewhere", {})
        brokers = f"local={broker.addresses['http']} other={other.addresses['http']}"
        console = Running(tmp_path / "console", brokers)
        page = open_page(f"{console.url}/local/topics")
        page.get_by_role("link", name="orders", exact=True).wait_for()
        page.wait_for_function("window.socket?.connected")
        page.get_by_label("Broker").select_option("other")
        page.wait_for_url("**/other")
        page.get_by_role("link", name="elsewhere", exact=True).wait_for()
        page.close()
        console.stop()


def test_ten_thousand_topics_are_searched_and_paged_by_the_broker(open_page: Open, tmp_path: Path) -> None:
    with ServeProcess(tmp_path / "broker", "--http", "127.0.0.1:0", "--durability", "async") as broker:
        from confluent_kafka.admin import AdminClient, NewTopic

        admin = AdminClient({"bootstrap.servers": broker.kafka})
        for begin in range(0, 10_000, 1_000):
            wanted = [NewTopic(f"topic-{number:05}", 1, 1) for number in range(begin, begin + 1_000)]
            for done in admin.create_topics(wanted).values():
                done.result(60)
        console = Running(tmp_path / "console", f"local={broker.addresses['http']}")
        page = open_page(f"{console.url}/local/topics")
        page.get_by_text("1–50 of 10k topics").wait_for()
        page.get_by_role("link", name="Next").click()
        page.get_by_role("link", name="topic-00050").wait_for()
        page.get_by_label("Filter topics").fill("topic-0777?")
        page.get_by_text("1–10 of 10 topics").wait_for()
        page.get_by_role("link", name="topic-07777").click()
        page.locator("h1", has_text="topic-07777").wait_for()
        page.close()
        console.stop()


@pytest.fixture
def secured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    """A console over a broker that knows root, who may do everything, and ann, who may do nothing."""
    data = tmp_path / "broker"
    with ServeProcess(data, "--http", "127.0.0.1:0") as broker:
        http = Http(broker.addresses["http"])
        for name in ("root", "ann"):
            http("POST", "/v1/users", {"name": name, "password": PASSWORD})
        http("PUT", "/v1/topics/payroll", {})
        broker.stop()
    monkeypatch.setenv("HEADRACE_CONSOLE_USER", "root")
    monkeypatch.setenv("HEADRACE_CONSOLE_PASSWORD", PASSWORD)
    flags = "--http 127.0.0.1:0 --authorization on --super-users root --http-authentication required"
    with ServeProcess(data, *flags.split()) as broker:
        console = Running(tmp_path / "console", f"local={broker.addresses['http']}")
        yield console
        assert "Traceback" not in console.stop()


def test_people_log_in_as_users_of_the_broker_and_see_what_they_may(secured: Running, open_page: Open) -> None:
    page = open_page(f"{secured.url}/local/topics", REFUSED)
    log_in(page, "ann", "wrong password")
    page.get_by_role("alert").wait_for()
    log_in(page, "ann")
    # The console itself may see everything; ann may not.
    page.get_by_text("No topics yet").wait_for()
    page.goto(f"{secured.url}/local/topic?name=payroll")
    page.get_by_role("heading", name="You may not see this").wait_for()
    for tab in ("", "?tab=rules", "?tab=history"):
        page.goto(f"{secured.url}/local/alerts{tab}")
        page.get_by_role("heading", name="You may not see this").wait_for()
    for tab in ("", "?tab=roles", "?tab=rights", "?tab=audit"):
        page.goto(f"{secured.url}/local/access{tab}")
        page.get_by_role("heading", name="You may not see this").wait_for()
    page.get_by_role("button", name="Log out").click()
    log_in(page, "root")
    page.goto(f"{secured.url}/local/topics")
    page.get_by_role("link", name="payroll", exact=True).wait_for()


def test_users_rights_and_tokens_are_given_and_what_was_done_is_recorded(secured: Running, open_page: Open) -> None:
    page = open_page(f"{secured.url}/local/access", REFUSED)
    log_in(page, "root")

    def fill(**fields: str) -> None:
        for name, value in fields.items():
            page.get_by_role("dialog").last.locator(f"[name={name}]").fill(value)

    def do(name: str) -> None:
        page.get_by_role("dialog").last.get_by_role("button", name=name, exact=True).click()

    page.get_by_role("button", name="New user").click()
    fill(name="bob", password=PASSWORD, again="another one")
    do("Create user")
    page.get_by_text("The two passwords differ", exact=False).wait_for()
    fill(again=PASSWORD)
    do("Create user")
    page.get_by_role("row").filter(has_text="bob").get_by_text("SCRAM-SHA-256").wait_for()

    def check(words: str) -> None:
        page.goto(f"{secured.url}/local/access?tab=check&user=bob&operation=read&resource=topic&name=payroll")
        page.get_by_role("status").filter(has_text=words).first.wait_for()

    check("refused")
    page.get_by_role("link", name="Rules", exact=True).click()
    page.get_by_role("button", name="New rule").click()
    fill(user="bob", name="pay*")
    expect(page.get_by_role("dialog").last.locator("code.command")).to_contain_text("headrace acl grant bob read topic")
    do("Add rule")
    page.get_by_role("row").filter(has_text="pay*").wait_for()
    check("allowed")
    page.get_by_role("link", name="Roles", exact=True).click()
    page.get_by_role("button", name="Grant a role").click()
    fill(user="bob")
    do("Grant")
    page.get_by_role("row").filter(has_text="bob").get_by_text("viewer").first.wait_for()

    page.goto(f"{secured.url}/local/access?tab=tokens&user=bob")
    page.get_by_role("button", name="New token").click()
    fill(note="for the robot")
    do("Create token")
    shown = page.get_by_role("dialog", name="The new token").locator("pre")
    token = shown.inner_text()
    assert len(token) > 20
    page.keyboard.press("Escape")
    page.get_by_text(token).first.wait_for(state="detached")
    page.get_by_role("row").filter(has_text="for the robot").wait_for()
    assert token not in page.content(), "it is shown once"
    robot = open_page(f"{secured.url}/local/topics", REFUSED)
    log_in(robot, "", token)
    robot.get_by_role("link", name="payroll", exact=True).wait_for()
    page.get_by_role("button", name="Revoke").click()
    do("Revoke")
    page.get_by_text("No tokens of bob").wait_for()
    robot.reload()
    robot.get_by_text("payroll").wait_for(state="hidden")

    page.get_by_role("link", name="Users", exact=True).click()
    page.get_by_role("button", name="Delete bob").click()
    do("Delete user")
    page.get_by_role("row").filter(has_text="bob").wait_for(state="hidden")
    page.get_by_role("link", name="Audit", exact=True).click()
    page.locator("[name=user]").fill("root")
    page.locator("[name=action]").fill("user.*")
    page.get_by_role("button", name="Filter", exact=True).click()
    page.get_by_role("row").filter(has_text="user.delete").filter(has_text="bob").wait_for()
    # Until the filter holds, all entries are there.
    expect(page.get_by_role("row").filter(has_text="acl.")).to_have_count(0)
