"""One group: where it is in each partition, who its members are, how its lag went; and its offsets set anew."""

from __future__ import annotations

from datetime import datetime
from shlex import quote

from headrace.console.client import models as m
from headrace.console.figures.table import number
from headrace.console.pages.groups import lag_of, state_mark, topic_links
from headrace.console.pages.overview import span_links, span_of
from headrace.console.ui import charts, formats, tables
from headrace.console.ui.dialogs import Answer, Field, ask
from headrace.console.ui.markup import Child, Html, h
from headrace.console.ui.page import Page, copy_button
from headrace.errors import ConfigError

PREVIEW_ROWS = 50


async def build(page: Page) -> None:
    name = page.query.get("name", "")
    group = await page.api.group(name)
    page.on_change("reset", lambda: _reset(page, group))
    page.on_change("delete", lambda: _delete(page, group))
    actions = [
        copy_button("Copy link", page.link("/group", name=name)),
        page.button("Reset offsets", "reset"),
        page.button("Delete group", "delete", kind="danger"),
    ]
    page.head(
        name,
        [state_mark(group.state), f" {group.kind} · reads ", topic_links(page, group.topics)],
        actions,
        h("a", "Groups", href=page.link("/groups")),
    )
    page.live(lambda: _verdict(page, group))
    page.live(lambda: _stats(page, group))
    page.show(
        h(
            "div",
            h("h2", "Over time"),
            h("span", class_="grow"),
            span_links(page, "/group", name=name),
            class_="section",
        )
    )
    _, seconds = span_of(page)

    async def drawn() -> Html:
        topics = group.topics[: charts.SERIES_MAX]
        lag = [charts.Line(each, await page.history("groups", f"{name}/{each}", "lag", seconds)) for each in topics]
        read = [
            charts.Line(each, await page.history("groups", f"{name}/{each}", "committed_rate", seconds))
            for each in topics
        ]
        return h(
            "div",
            charts.chart("Lag", lag, formats.count, page.zone, seconds),
            charts.chart("Messages read", read, formats.rate, page.zone, seconds),
            class_="grid two",
        )

    await page.live_async(drawn)()
    page.show(h("div", h("h2", "Members"), class_="section"), _members(group))
    page.show(h("div", h("h2", "Partitions"), class_="section"), _partitions(page, group))


def why_behind(group: m.GroupDetail, read_rate: float | None, in_rate: float, lag: float) -> tuple[str, str]:
    """Why a group is behind, in words, and how bad that is."""
    if lag <= 0:
        return "good", "The group has read everything."
    idle = [each for each in group.partition_list if (each.lag or 0) > 0 and not each.member_id]
    if not group.members:
        return "bad", "Nobody reads: the group has no members. Start its consumers."
    if idle and len(idle) == len([each for each in group.partition_list if (each.lag or 0) > 0]):
        return (
            "bad",
            f"No member reads the {formats.plural(len(idle), 'partition')} that are behind. Look at the "
            "members' logs and subscriptions.",
        )
    if read_rate is None:
        return "warn", "How fast the group reads shows in some seconds: it commits only now and then."
    if read_rate <= 0:
        return "bad", "The members read nothing: they are stuck in a message, or do not commit."
    if in_rate > read_rate * 1.05:
        return "bad", (
            f"Messages come faster ({formats.rate(in_rate)}) than the group reads "
            f"({formats.rate(read_rate)}): the lag grows. "
            f"Add members (there are {group.members} for "
            f"{formats.plural(len(group.partition_list), 'partition')}), or make handlers faster."
        )
    worst = max((each.lag or 0 for each in group.partition_list), default=0)
    if len(group.partition_list) > 1 and worst > 0.8 * lag and lag > 100:
        place = next(each for each in group.partition_list if (each.lag or 0) == worst)
        return (
            "warn",
            f"Most of the lag is in {place.topic}/{place.partition}: one key may have most messages, or its "
            "member is slow.",
        )
    if read_rate > in_rate and read_rate > 0:
        return (
            "warn",
            f"It catches up: level in about {formats.duration(lag / max(read_rate - in_rate, 0.001))} at this rate.",
        )
    return "warn", "It keeps pace, at this distance."


def _rates(page: Page, group: m.GroupDetail) -> tuple[float | None, float]:
    """How fast the group reads, and how fast its topics grow."""
    table = page.sampler.table
    return table.pace(group.group), sum(
        number(table.row("topics", topic), "messages_in_rate") for topic in group.topics
    )


def _verdict(page: Page, group: m.GroupDetail) -> Html:
    read, arriving = _rates(page, group)
    kind, words = why_behind(group, read, arriving, lag_of(page, group) or 0)
    return h(
        "div",
        tables.mark({"good": "level", "warn": "behind", "bad": "behind"}[kind], kind),
        " ",
        words,
        class_="note-box",
        role="status",
    )


def _stats(page: Page, group: m.GroupDetail) -> Html:
    read, arriving = _rates(page, group)
    cards = [
        tables.stat("Lag", formats.count(lag_of(page, group)), "messages"),
        tables.stat("Behind by", formats.milliseconds(group.lag_ms), "age of the next message"),
        tables.stat("Reads", formats.rate(read)),
        tables.stat("Its topics grow by", formats.rate(arriving)),
        tables.stat("Members", formats.count(group.members)),
    ]
    return tables.stats(cards)


def _members(group: m.GroupDetail) -> Html:
    if not group.member_list:
        return h("div", tables.empty("No members", "Consumers that join the group show here."), class_="card")
    column = tables.Column[m.Member]
    lag = {(each.topic, each.partition): each.lag or 0 for each in group.partition_list}

    def places(member: m.Member) -> str:
        names = [f"{each.topic}/{each.partition}" for each in member.partitions]
        return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")

    columns = [
        column("Client", lambda e: e.client_id or e.member_id, "name"),
        column("Host", lambda e: h("code", e.host), "clip"),
        column("Partitions", lambda e: formats.count(len(e.partitions)), "num"),
        column("Lag", lambda e: formats.count(sum(lag.get((p.topic, p.partition), 0) for p in e.partitions)), "num"),
        column("Reads", places, "clip"),
    ]
    return h("div", tables.table(columns, group.member_list, "Members"), class_="card")


def _partitions(page: Page, group: m.GroupDetail) -> Html:
    if not group.partition_list:
        return h("div", tables.empty("No offsets yet", "The group has committed nothing."), class_="card")
    column = tables.Column[m.GroupPartition]
    worst = max((each.lag or 0 for each in group.partition_list), default=0) or 1
    rows = sorted(group.partition_list, key=lambda each: (-(each.lag or 0), each.topic, each.partition))[:500]
    columns = [
        column(
            "Partition",
            lambda e: h(
                "a",
                f"{e.topic}/{e.partition}",
                href=page.link("/topic", name=e.topic, tab="messages", partition=e.partition),
            ),
            "name",
        ),
        column(
            "Lag",
            lambda e: h(
                "span",
                h("i", class_="bar-of", style=f"width:{80 * (e.lag or 0) // worst}px"),
                " ",
                formats.count(e.lag),
            ),
            "num",
        ),
        column("Behind by", lambda e: formats.milliseconds(e.lag_ms), "num"),
        column("Committed", lambda e: "–" if e.committed is None else f"{e.committed:,}", "num"),
        column("End offset", lambda e: "–" if e.end is None else f"{e.end:,}", "num"),
        column("Member", lambda e: e.client_id or h("span", "nobody", class_="muted"), "clip"),
    ]
    foot = (
        h("div", f"The {len(rows)} that are most behind of {formats.count(len(group.partition_list))}", class_="foot")
        if len(rows) < len(group.partition_list)
        else None
    )
    return h("div", tables.table(columns, rows, "Partitions"), foot, class_="card")


def target(answer: Answer, zone: object = None) -> object:
    """Where offsets are to go, as the API has it."""
    to = answer.get("to", "latest")
    words = answer.get("value", "").strip()
    if to in ("earliest", "latest"):
        return to
    try:
        if to == "time":
            when = datetime.fromisoformat(words)
            if when.tzinfo is None:
                when = when.replace(tzinfo=zone)  # type: ignore[arg-type]
            return {"time_ms": round(when.timestamp() * 1000)}
        return {to: int(words)}
    except ValueError:
        kind = "a time such as 2026-11-19T12:00" if to == "time" else "a whole number"
        raise ConfigError(f"the place must be {kind} (got {words!r})") from None


def _reset(page: Page, group: m.GroupDetail) -> None:
    ways = [
        ("latest", "the end: skip what is there"),
        ("earliest", "the first messages: read all again"),
        ("time", "a time"),
        ("offset", "an offset"),
        ("shift", "by so many messages, + or -"),
    ]
    fields = [
        Field(
            "topic",
            "Topic",
            kind="select",
            choices=[("", "all of the group"), *((each, each) for each in group.topics)],
        ),
        Field("to", "To", kind="select", choices=ways),
        Field(
            "value",
            "Time, offset or number",
            placeholder="2026-11-19T12:00",
            hint="A time without an offset is in your zone.",
        ),
    ]

    def body(answer: Answer) -> dict[str, object]:
        made: dict[str, object] = {"to": target(answer, page.zone)}
        if answer.get("topic"):
            made["topic"] = answer["topic"]
        return made

    async def act(answer: Answer) -> None:
        await page.api.reset_group(group.group, body(answer), dry_run=False)

    async def preview(answer: Answer) -> Child:
        found = (await page.api.reset_group(group.group, body(answer), dry_run=True)).partitions
        column = tables.Column[m.ResetPartition]
        columns = [
            column("Partition", lambda e: f"{e.topic}/{e.partition}", "name"),
            column("Now", lambda e: "–" if e.before is None else f"{e.before:,}", "num"),
            column("Then", lambda e: f"{e.after:,}", "num"),
            column("Change", lambda e: "–" if e.change is None else f"{e.change:+,}", "num"),
        ]
        again = sum(-each.change for each in found if each.change and each.change < 0)
        skipped = sum(each.change for each in found if each.change and each.change > 0)
        words = f"{formats.plural(again, 'message')} would be read again, {formats.count(skipped)} skipped."
        return h(
            "div",
            h("p", words),
            tables.table(columns, found[:PREVIEW_ROWS], "What would change"),
            style="margin-bottom:12px",
        )

    def words(answer: Answer) -> str:
        to, value = answer.get("to", "latest"), answer.get("value", "")
        place = f"--to {to}" if to in ("earliest", "latest") else f"--{to} {quote(value)}"
        topic = f" --topic {quote(answer['topic'])}" if answer.get("topic") else ""
        return f"headrace group reset {quote(group.group)}{topic} {place}"

    what: Child = "The group reads on from there. Its members must be stopped first."
    if group.members:
        what = h(
            "span",
            f"{formats.plural(group.members, 'member')} still read: stop them first, or the broker refuses this.",
            style="color:var(--bad)",
        )
    ask(
        page,
        f"Reset offsets of {group.group}",
        what,
        act,
        fields,
        verb="Reset offsets",
        is_danger=True,
        equivalent=words,
        preview=preview,
        is_wide=True,
        done="The offsets are reset.",
    )


def _delete(page: Page, group: m.GroupDetail) -> None:
    async def act(_: Answer) -> None:
        await page.api.delete_group(group.group)

    async def leave() -> None:
        page.go("/groups")

    ask(
        page,
        f"Delete {group.group}",
        f"The offsets of {group.group} in {formats.plural(len(group.topics), 'topic')} are forgotten. A "
        "consumer that joins begins by its own setting.",
        act,
        verb="Delete group",
        is_danger=True,
        equivalent=f"headrace group delete {quote(group.group)} --yes",
        done="The group is deleted.",
        again=leave,
    )
