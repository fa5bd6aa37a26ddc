"""Queues: what is ready, in flight, deferred and dead in each."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.console.client import models as m
from headrace.console.figures.table import number
from headrace.console.ui import charts, formats, tables
from headrace.console.ui.dialogs import Answer, Field, ask
from headrace.console.ui.lists import ListView
from headrace.console.ui.markup import Child, Html, h
from headrace.console.ui.page import Page

Column = tables.Column[m.Queue]


async def build(page: Page) -> None:
    page.on_change("create", lambda: _create(page))
    page.head("Queues", actions=page.button("New queue", "create", kind="main-action"))

    async def fetch(query: tables.ListQuery) -> tuple[Sequence[m.Queue], int]:
        found = await page.api.queues(query.to_broker)
        return found.queues, found.total

    table = page.sampler.table

    def figure(queue: m.Queue, name: str, given: float) -> float:
        row = table.row("queues", queue.topic, queue.queue)
        return number(row, name) if name in row else given

    columns = [
        Column(
            "Queue", lambda q: h("a", q.queue, href=page.link("/queue", topic=q.topic, name=q.queue)), "name", "queue"
        ),
        Column("Topic", lambda q: h("a", q.topic, href=page.link("/topic", name=q.topic)), "clip", "topic"),
        Column("Ready", lambda q: formats.count(figure(q, "depth", q.depth)), "num", "depth"),
        Column("", lambda q: charts.spark(table.spark("queues", q.topic, q.queue), f"ready in {q.queue}"), "num"),
        Column("In flight", lambda q: formats.count(figure(q, "in_flight", q.in_flight)), "num", "in_flight"),
        Column("Deferred", lambda q: formats.count(figure(q, "deferred", q.deferred)), "num", "deferred"),
        Column("Dead", lambda q: h("span", formats.count(figure(q, "dead", q.dead))), "num", "dead"),
        Column(
            "Oldest",
            lambda q: formats.milliseconds(table.age_ms(table.row("queues", q.topic, q.queue))),
            "num",
            "age_ms",
        ),
        Column("Out", lambda q: formats.rate(figure(q, "finished_rate", 0)), "num"),
        Column("Consumers", lambda q: formats.count(figure(q, "consumers", q.consumers)), "num", "consumers"),
        Column("State", lambda q: queue_state(q.paused, q.stuck)),
    ]
    nothing = tables.empty(
        "No queues yet",
        "A queue of a topic is made by its first consumer, or here.",
        "headrace queue create orders mail",
    )
    await ListView(page, "/queues", "queues", columns, fetch, nothing, "queue").show()


def queue_state(paused: bool, stuck: int) -> Html:
    if stuck:
        return tables.mark(f"{formats.count(stuck)} stuck", "bad")
    return tables.mark("paused", "warn") if paused else tables.mark("on", "good")


def _create(page: Page) -> None:
    async def act(answer: Answer) -> None:
        await page.api.create_queue(answer["topic"], answer["queue"])
        page.go("/queue", topic=answer["topic"], name=answer["queue"])

    async def stay() -> None:
        pass

    fields = [
        Field("topic", "Topic", page.query.get("topic", ""), required=True),
        Field("queue", "Name", required=True),
    ]
    what: Child = "The queue takes every message of the topic from now on. Consumers of all protocols can share it."
    ask(
        page,
        "New queue",
        what,
        act,
        fields,
        verb="Create queue",
        done="The queue is there.",
        again=stay,
        equivalent=lambda a: f"headrace queue create {a.get('topic') or 'TOPIC'} {a.get('queue') or 'QUEUE'}",
    )
