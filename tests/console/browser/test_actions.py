"""Every action is done in the browser, and looked for at the broker."""

from __future__ import annotations

import re

from confluent_kafka import Producer
from playwright.sync_api import Page, expect
from tests.console.browser.conftest import ORDERS, Http, Running
from tests.serve_process import ServeProcess
from tests.waiting import wait_until


def go(page: Page, console: Running, path: str) -> None:
    page.goto(f"{console.url}/local{path}")
    page.locator("h1").first.wait_for()


def dialog(page: Page):
    return page.get_by_role("dialog").last


def test_a_topic_is_checked_created_set_grown_and_deleted(page: Page, console: Running, filled: Http) -> None:
    go(page, console, "/topics")
    page.get_by_role("button", name="New topic").click()
    form = dialog(page)
    form.get_by_label("Name", exact=True).fill("no such name!")
    form.get_by_label("Partitions", exact=True).fill("2")
    form.get_by_role("button", name="Preview").click()
    form.locator(".note-box.bad").wait_for()
    form.get_by_label("Name", exact=True).fill("tea")
    form.get_by_role("button", name="Preview").click()
    form.get_by_text("The broker accepts this").wait_for()
    expect(form.locator("code.command")).to_contain_text("headrace topic create tea --partitions 2")
    form.get_by_role("button", name="Create topic").click()
    page.locator("h1", has_text="tea").wait_for()
    assert filled("GET", "/v1/topics/tea")["partitions"] == 2

    page.get_by_role("link", name="Partitions").click()
    page.get_by_role("button", name="Add partitions").click()
    dialog(page).get_by_label("How many there are to be", exact=True).fill("4")
    dialog(page).get_by_role("button", name="Add partitions").click()
    wait_until(lambda: filled("GET", "/v1/topics/tea")["partitions"] == 4)

    go(page, console, "/topic?name=tea&tab=settings")
    page.get_by_role("button", name="Change retention.ms").click()
    dialog(page).get_by_label("retention.ms", exact=True).fill("no number")
    dialog(page).get_by_role("button", name="Change").click()
    dialog(page).locator(".note-box.bad").wait_for()
    dialog(page).get_by_label("retention.ms", exact=True).fill("3600000")
    dialog(page).get_by_role("button", name="Preview").click()
    dialog(page).get_by_text("604800000 → 3600000").wait_for()
    dialog(page).get_by_role("button", name="Change").click()
    page.get_by_role("heading", name="Set for this topic").wait_for()
    assert filled("GET", "/v1/topics/tea")["settings"]["retention.ms"] == "3600000"

    page.get_by_role("button", name="Delete topic").click()
    dialog(page).get_by_label("Write the topic's name", exact=True).fill("coffee")
    dialog(page).get_by_role("button", name="Delete topic").click()
    dialog(page).get_by_text("write tea to delete it", exact=False).wait_for()
    dialog(page).get_by_label("Write the topic's name", exact=True).fill("tea")
    dialog(page).get_by_role("button", name="Delete topic").click()
    page.locator("h1", has_text="Topics").wait_for()
    assert filled.is_missing("/v1/topics/tea")


def test_messages_are_produced_filtered_opened_downloaded_followed_and_deleted(
    page: Page, console: Running, filled: Http
) -> None:
    go(page, console, "/topic?name=payments&tab=messages")
    page.get_by_role("button", name="Produce").click()
    form = dialog(page)
    form.get_by_label("Key", exact=True).fill("p1")
    form.get_by_label("Value", exact=True).fill('{"order": 1, "note": "<b>bold</b>"}')
    form.get_by_label("Headers", exact=True).fill("trace=7")
    form.get_by_role("button", name="Publish").click()
    page.get_by_role("cell", name="p1").wait_for()
    # What a message holds is text, never an element of the page.
    assert page.locator("td b").count() == 0
    found = filled("GET", "/v1/topics/payments/messages?newest=true&limit=1")["messages"][0]
    assert (found["key"], found["headers"]) == ("p1", [{"name": "trace", "value": "7"}])

    page.get_by_role("button", name=f"Open message 0/{found['offset']}").click()
    dialog_ = page.locator(".sheet")
    dialog_.get_by_text('"order": 1', exact=False).first.wait_for()
    with page.expect_download() as download:
        dialog_.get_by_role("button", name="Download value").click()
    assert download.value.path().read_text() == '{"order": 1, "note": "<b>bold</b>"}'
    page.keyboard.press("Escape")

    go(page, console, "/topic?name=orders&tab=messages")
    page.get_by_label("Expression", exact=True).fill("value.customer.id = 3 and offset >= 0")
    page.get_by_role("button", name="Show").click()
    page.wait_for_url(re.compile("where="))
    page.get_by_text(re.compile(f"{len([n for n in range(ORDERS) if n % 7 == 3])} messages, ")).wait_for()
    page.get_by_label("Expression", exact=True).fill("value. = =")
    page.get_by_role("button", name="Show").click()
    page.locator(".note-box.bad").wait_for()

    go(page, console, "/topic?name=payments&tab=messages&live=true")
    page.get_by_text("Waiting for messages").wait_for()

    def publish() -> None:
        filled("POST", "/v1/topics/payments/messages", {"key": "tail", "value": "now"})
        page.wait_for_timeout(200)

    wait_until(lambda: page.get_by_role("cell", name="tail").count() > 0, turn=publish)

    page.get_by_role("button", name="Delete records").click()
    dialog(page).get_by_role("button", name="Preview").click()
    dialog(page).get_by_text("would be deleted", exact=False).wait_for()
    dialog(page).get_by_role("button", name="Delete records").click()
    wait_until(lambda: filled("GET", "/v1/topics/payments")["messages"] == 0)


def test_messages_are_found_in_all_topics_and_a_life_goes_over_them(page: Page, console: Running, filled: Http) -> None:
    trace = "5e" * 16
    header = {"name": "traceparent", "value": f"00-{trace}-{'ab' * 8}-01"}
    for topic in ("shipped", "billed"):
        filled("PUT", f"/v1/topics/{topic}", {"partitions": 1})
        body = {"key": "o-77", "value": topic, "headers": [header]}
        filled("POST", f"/v1/topics/{topic}/messages", body)
    filled("PUT", "/v1/topics/shipped/queues/notify", {"from": "earliest", "settings": {"deliveries": 1}})
    place = {"messages": [{"partition": 0, "offset": 0}]}
    filled("POST", "/v1/topics/shipped/queues/notify/messages/reject", {**place, "error": "no address"})
    wait_until(lambda: filled("GET", "/v1/topics/shipped/queues/notify")["dead"] == 1)
    filled("POST", "/v1/redrive", {"topic": "shipped.notify.dead"})
    go(page, console, "/messages")
    page.locator("select[name=by]").select_option("key")
    page.get_by_label("Value", exact=True).fill("o-77")
    page.get_by_role("button", name="Find", exact=True).click()
    row = page.get_by_role("row").filter(has_text="shipped/0/0")
    row.wait_for()
    assert page.get_by_role("row").filter(has_text="billed/0/0").count() == 1
    row.get_by_role("link", name="Its life").click()
    life = page.locator("ol.life")
    for words in ("Published billed/0/0", "Put into the dead letters shipped/0/0 in notify", "no address"):
        life.get_by_text(words).first.wait_for()
    life.get_by_text("Sent back from the dead letters").first.wait_for()
    page.get_by_role("link", name=trace).click()
    page.locator("h1", has_text=f"Trace {trace}").wait_for()
    assert page.locator("ol.life li").count() >= 4


def test_messages_of_a_queue_are_looked_at_and_settled(page: Page, console: Running, filled: Http) -> None:
    filled("PUT", "/v1/topics/parcels", {"partitions": 1})
    for number in range(5):
        filled("POST", "/v1/topics/parcels/messages", {"key": f"p{number}", "value": f"parcel {number}"})
    path = "/v1/topics/parcels/queues/sorting"
    filled("PUT", path, {"from": "earliest"})
    go(page, console, "/queue?topic=parcels&name=sorting&tab=messages")

    def select(*offsets: int) -> None:
        for offset in offsets:
            page.get_by_label(f"Select parcels/0/{offset}").check()

    def shown() -> int:
        return page.locator("table tbody tr").count()

    assert shown() == 5
    select(0)
    page.get_by_role("button", name="Settle selected").click()
    expect(dialog(page).locator("code.command")).to_have_text("headrace queue settle parcels sorting 0/0")
    dialog(page).get_by_role("button", name="Settle", exact=True).click()
    wait_until(lambda: filled("GET", path)["depth"] == 4)
    wait_until(lambda: shown() == 4)

    select(1, 2)
    page.get_by_role("button", name="Give back selected").click()
    dialog(page).get_by_label("Delay in seconds", exact=True).fill("3600")
    dialog(page).get_by_role("button", name="Give back", exact=True).click()
    wait_until(lambda: filled("GET", path)["deferred"] == 2)
    page.get_by_role("link", name="Deferred", exact=True).click()
    wait_until(lambda: shown() == 2)
    page.get_by_role("row").filter(has_text="in 1 h").first.wait_for()

    select(1)
    page.get_by_role("button", name="Dead-letter selected").click()
    dialog(page).get_by_label("Reason, for the dead letters", exact=True).fill("torn open")
    dialog(page).get_by_role("button", name="Dead-letter", exact=True).click()
    wait_until(lambda: filled("GET", path)["dead"] == 1)
    (letter,) = filled("GET", "/v1/dead-letters/parcels.sorting.dead/messages")["messages"]
    assert (letter["key"], letter["error"]) == ("p1", "torn open")
    for state in ("In flight", "Blocked", "Dead"):
        page.get_by_role("link", name=state, exact=True).click()
        page.get_by_text(f"No messages are {state.lower()}").wait_for()


def test_a_queue_is_paused_set_emptied_and_deleted(page: Page, console: Running, filled: Http) -> None:
    path = "/v1/topics/payments/queues/ledger"
    go(page, console, "/queues")
    page.get_by_role("button", name="New queue").click()
    dialog(page).get_by_label("Topic", exact=True).fill("payments")
    dialog(page).get_by_label("Name", exact=True).fill("ledger")
    dialog(page).get_by_role("button", name="Create queue").click()
    page.locator("h1", has_text="ledger").wait_for()
    filled("POST", "/v1/topics/payments/messages", {"value": "one"})
    page.get_by_role("button", name="Pause").click()
    expect(dialog(page).locator("code.command")).to_have_text("headrace queue pause payments ledger")
    dialog(page).get_by_role("button", name="Pause").click()
    page.locator(".mark", has_text="paused").wait_for()
    assert filled("GET", path)["paused"] is True
    page.get_by_role("button", name="Resume").click()
    dialog(page).get_by_role("button", name="Resume").click()
    wait_until(lambda: filled("GET", path)["paused"] is False)

    page.get_by_role("link", name="Settings").click()
    page.get_by_role("button", name="Change backoff_ms").click()
    dialog(page).get_by_label("backoff_ms", exact=True).fill("1000,2000")
    dialog(page).get_by_role("button", name="Change").click()
    wait_until(lambda: filled("GET", path)["settings"]["backoff_ms"] == [1000, 2000])

    assert filled("GET", path)["depth"] >= 1
    page.get_by_role("button", name="Empty").click()
    dialog(page).get_by_role("button", name="Empty").click()
    wait_until(lambda: filled("GET", path)["depth"] == 0)
    page.get_by_role("button", name="Delete queue").click()
    dialog(page).get_by_role("button", name="Cancel").click()
    dialog(page).wait_for(state="hidden")
    assert not filled.is_missing(path)
    page.get_by_role("button", name="Delete queue").click()
    dialog(page).get_by_role("button", name="Delete queue").click()
    page.locator("h1", has_text="Queues").wait_for()
    assert filled.is_missing(path)


def test_a_groups_offsets_are_reset_after_a_look_at_what_changes(page: Page, console: Running, filled: Http) -> None:
    go(page, console, "/group?name=billing")
    page.get_by_text("Nobody reads: the group has no members", exact=False).wait_for()
    before = filled("GET", "/v1/groups/billing")["lag"]
    assert before > 0
    page.get_by_role("button", name="Reset offsets").click()
    form = dialog(page)
    form.get_by_role("button", name="Preview").click()
    form.get_by_text(re.compile(f"0 messages would be read again, {before} skipped")).wait_for()
    assert filled("GET", "/v1/groups/billing")["lag"] == before
    form.get_by_label("To", exact=True).select_option("earliest")
    expect(form.locator("code.command")).to_have_text("headrace group reset billing --to earliest")
    form.get_by_role("button", name="Reset offsets").click()
    wait_until(lambda: filled("GET", "/v1/groups/billing")["lag"] == ORDERS)


def test_a_delayed_message_is_cancelled(page: Page, console: Running, filled: Http) -> None:
    filled("POST", "/v1/topics/payments/messages", {"key": "later", "value": "x", "delay": "2h"})
    go(page, console, "/timers")
    page.get_by_role("row").filter(has_text="later").get_by_role("button", name="Cancel").click()
    dialog(page).get_by_role("button", name="Cancel the message").click()
    wait_until(lambda: filled("GET", "/v1/timers")["timers"] == [])
    page.get_by_text("Nothing waits").wait_for()


def test_a_connection_is_closed(page: Page, console: Running, filled: Http, broker: ServeProcess) -> None:
    producer = Producer({"bootstrap.servers": broker.kafka, "client.id": "victim"})
    producer.list_topics(timeout=30)
    before = filled("GET", "/v1/clients?search=victim")["clients"]
    assert before
    go(page, console, "/clients")
    page.get_by_label("Filter clients").fill("victim")
    page.get_by_role("row").filter(has_text="victim").first.get_by_role("button", name="Close").click()
    dialog(page).get_by_role("button", name="Close it").click()
    ids = {each["id"] for each in before}
    wait_until(lambda: ids - {each["id"] for each in filled("GET", "/v1/clients?search=victim")["clients"]})


def test_rules_silences_and_channels_are_made_and_taken_away(page: Page, console: Running, filled: Http) -> None:
    go(page, console, "/alerts?tab=rules")
    page.get_by_role("button", name="New rule").click()
    form = dialog(page)
    form.get_by_label("Name", exact=True).fill("Mail piles up")
    form.get_by_label("Figure", exact=True).select_option("queue_depth")
    form.get_by_label("Threshold", exact=True).fill("5")
    form.get_by_label("For at least, in seconds", exact=True).fill("0")
    form.get_by_label("Queues", exact=True).fill("mai*")
    form.get_by_role("button", name="Save").click()
    page.get_by_role("cell", name="Mail piles up", exact=True).wait_for()
    rule = filled("GET", "/v1/alerts/rules/mail-piles-up")
    assert (rule["figure"], rule["threshold"], rule["scope"]) == ("queue_depth", 5, {"queue": "mai*"})

    # It fires while the page is open, and someone takes it.
    go(page, console, "/alerts")
    row = page.get_by_role("row").filter(has_text="Mail piles up").filter(has_text="queue mail")
    row.get_by_role("button", name="Take it").click()
    row.get_by_text("taken by", exact=False).wait_for()
    row.get_by_role("button", name="Silence").click()
    dialog(page).get_by_label("Why", exact=True).fill("lunch")
    dialog(page).get_by_role("button", name="Silence").click()
    (silence,) = wait_until(lambda: filled("GET", "/v1/alerts/silences")["silences"])
    assert silence["matchers"] == {"rule": "mail-piles-up", "topic": "orders", "queue": "mail"}
    go(page, console, "/alerts?tab=silences")
    page.get_by_role("button", name="End").click()
    page.get_by_text("No silences").wait_for()
    assert filled("GET", "/v1/alerts/silences")["silences"] == []

    go(page, console, "/alerts?tab=channels")
    page.get_by_role("button", name="New channel").click()
    form = dialog(page)
    form.get_by_label("Name", exact=True).fill("hook")
    form.get_by_label("Address", exact=True).fill("http://127.0.0.1:1/hook")
    form.get_by_label("Secret", exact=True).fill("a secret of some length")
    form.get_by_role("button", name="Save").click()
    page.get_by_role("cell", name="hook", exact=True).wait_for()
    assert filled("GET", "/v1/alerts/channels")["channels"][0]["secret_set"] is True
    page.get_by_role("button", name="Test").click()
    page.get_by_text("cannot be reached", exact=False).wait_for()
    page.get_by_role("row").filter(has_text="hook").get_by_role("button", name="Delete").click()
    dialog(page).get_by_role("button", name="Delete").click()
    page.get_by_text("No channels").wait_for()

    go(page, console, "/alerts?tab=history")
    page.get_by_role("row").filter(has_text="acknowledged").filter(has_text="Mail piles up").wait_for()
    go(page, console, "/alerts?tab=rules")
    page.get_by_role("button", name="Remove Mail piles up").click()
    dialog(page).get_by_role("button", name="Delete").click()
    wait_until(lambda: filled.is_missing("/v1/alerts/rules/mail-piles-up"))


def test_a_registration_is_asked_for_and_approved(page: Page, console: Running, filled: Http) -> None:
    go(page, console, "/apps?tab=registrations")
    page.get_by_role("button", name="Request a registration").click()
    form = dialog(page)
    form.get_by_label("Topic", exact=True).fill("invoices")
    form.get_by_label("Owner", exact=True).fill("team-money")
    form.get_by_label("Contacts", exact=True).fill("money@example.org")
    form.get_by_role("button", name="Request", exact=True).click()
    page.get_by_role("row").filter(has_text="invoices").get_by_role("button", name="Approve").click()
    dialog(page).get_by_label("Reason", exact=True).fill("fine")
    dialog(page).get_by_role("button", name="Approve").click()
    page.get_by_role("row").filter(has_text="invoices").get_by_text("approved").wait_for()
    (found,) = filled("GET", "/v1/registrations")["registrations"]
    assert (found["topic"], found["owner"], found["state"]) == ("invoices", "team-money", "approved")
    assert filled("GET", "/v1/topics/invoices")["topic"] == "invoices"
