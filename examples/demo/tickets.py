"""Train tickets: orders queue up for seats, are paid within a delay or cancelled by a timer, and printed.

orders     one after the other for each train, so that seats go to the first orders
payments   the bank fails now and then: tried again
deadlines  a message that is delivered when the time to pay is over; an order that is not paid by then is cancelled
tickets    the printer jams on some: dead letters, and `redrive` once it is mended
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

import msgspec

from examples.demo.report import Report
from examples.demo.stage import Bars, Stage
from headrace.cli.over_http import Api
from headrace.sdk import App, Message, Reject, Retry

TRAINS = 10
ORDERS = 2_000
SEATS_SHARE = 0.9
PAY_SECONDS = 6.0
DEAD = "tickets.office.dead"


class Order(msgspec.Struct):
    """An order of a seat."""

    number: int
    train: str

    @property
    def pays(self) -> bool:
        return self.number % 10 < 7

    @property
    def bank_fails(self) -> bool:
        """Whether the first try to pay fails."""
        return self.number % 7 == 0

    @property
    def jams(self) -> bool:
        """Whether its ticket jams the printer."""
        return self.number % 40 == 1


class Deadline(msgspec.Struct):
    """When the time to pay is over."""

    order: Order
    due: float


class Office:
    """The state of the ticket office, as its handlers see it."""

    def __init__(self, trains: dict[str, int]) -> None:
        self.seats = trains
        self.reserved: set[int] = set()
        self.refused: set[int] = set()
        self.paid: set[int] = set()
        self.cancelled: set[int] = set()
        self.late: set[int] = set()
        """Whose payment came after the deadline: a machine that is very busy."""
        self.printed: Counter[int] = Counter()
        self.jammed: Counter[int] = Counter()
        self.bank_failures = 0
        self.early = 0
        self.printer_works = False


async def play(stage: Stage) -> Report:
    report = Report("Train tickets", "ordered, task")
    per_train = stage.count(ORDERS // TRAINS)
    seats = max(round(per_train * SEATS_SHARE), 1)
    orders = [Order(number, f"train-{number % TRAINS}") for number in range(per_train * TRAINS)]
    office = Office({f"train-{index}": seats for index in range(TRAINS)})
    app = _office(stage.url, office)
    # The first of each train get its seats.
    seated = [each for each in orders if each.number // TRAINS < seats]
    paying = {each.number for each in seated if each.pays}
    jams = {each.number for each in seated if each.pays and each.jams}
    bars = Bars(stage.console)
    bars.watch("orders decided", len(orders), lambda: len(office.reserved) + len(office.refused))
    bars.watch("paid or cancelled", len(seated), lambda: len(office.paid) + len(office.cancelled))
    bars.watch("tickets printed or jammed", len(paying), lambda: len(office.printed) + len(office.jammed))
    async with app:
        await asyncio.gather(*[await app.send("orders", each) for each in orders])
        await bars.until_full()
        stage.console.print(f"  the printer is mended: {len(office.jammed):,} dead letters are redriven")
        office.printer_works = True
        redriven = await asyncio.to_thread(redrive, stage.http, DEAD) if office.jammed else 0
        bars = Bars(stage.console)
        bars.watch("tickets printed in the end", len(office.paid), lambda: len(office.printed))
        await bars.until_full()
    report.figure("orders", len(orders))
    report.figure("sold out for", len(office.refused))
    report.figure("paid", len(office.paid))
    report.figure("cancelled by timer", len(office.cancelled))
    report.figure("payments tried again", office.bank_failures)
    report.figure("dead letters redriven", redriven)
    if office.late:
        report.figure("paid too late, and cancelled", len(office.late))
    report.check("seats to the first orders", {each.number for each in seated}, office.reserved)
    report.check("exactly those cancelled that did not pay in time", office.reserved - office.paid, office.cancelled)
    report.check("all others paid", paying - office.late, office.paid)
    report.check("no timer early", 0, office.early)
    report.check("dead letters: exactly the jammed ones", jams - office.late, set(office.jammed))
    report.check("all of them redriven", len(office.jammed), redriven)
    report.check("a ticket for each that paid, and one", dict.fromkeys(office.paid, 1), dict(office.printed))
    report.look += [
        "headrace queue show tickets office",
        f"headrace consume {DEAD}",
        "docs/queues-managing.md",
    ]
    return report


def _office(url: str, office: Office) -> App:
    app = App("office", url)

    @app.subscribe("orders", scenario="ordered", ordered_by="train")
    async def reserve(order: Order) -> None:
        if order.number in office.reserved | office.refused:
            return
        if not office.seats[order.train]:
            office.refused.add(order.number)
            return
        office.seats[order.train] -= 1
        office.reserved.add(order.number)
        await app.publish("deadlines", Deadline(order, time.time() + PAY_SECONDS), delay=PAY_SECONDS)
        if order.pays:
            await app.publish("payments", order)

    @app.subscribe("payments", scenario="task", ladder=(0.1,))
    async def pay(order: Order, message: Message) -> None:
        if order.bank_fails and message.attempt == 1:
            office.bank_failures += 1
            raise Retry("the bank did not answer")
        if order.number in office.cancelled:
            office.late.add(order.number)
            return
        office.paid.add(order.number)
        await app.publish("tickets", order)

    @app.subscribe("deadlines", scenario="task")
    async def cancel(deadline: Deadline) -> None:
        office.early += time.time() < deadline.due - 0.01
        if deadline.order.number not in office.paid:
            office.cancelled.add(deadline.order.number)

    @app.subscribe("tickets", scenario="task", attempts=3, ladder=(0.05,))
    async def print_ticket(order: Order) -> None:
        if order.jams and not office.printer_works:
            office.jammed[order.number] += 1
            raise Reject("the printer jams")
        office.printed[order.number] += 1

    return app


def redrive(http: str, topic: str) -> int:
    """Send dead letters back, as `headrace redrive` does; how many."""
    api = Api(http, as_json=True)
    place: Any = None
    count = 0
    while True:
        step = api.ask("POST", "/v1/redrive", {"topic": topic, "next": place})
        count += [each["outcome"] for each in step["results"]].count("redriven")
        place = step["next"]
        if place is None:
            return count
