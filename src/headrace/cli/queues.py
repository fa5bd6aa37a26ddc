"""`headrace queue`: create, list, show, change, pause, empty and delete queues, and peek at their next messages."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Annotated, Any

import typer

from headrace.cli.durations import HELP as DURATION
from headrace.cli.durations import format_age, format_duration, format_rough, parse_duration
from headrace.cli.options import Yes, add_options
from headrace.cli.output import confirm, preview, print_json, show
from headrace.cli.over_http import Api, Queue, Topic, over_http, queue_path
from headrace.cli.positions import HELP as POSITION
from headrace.cli.positions import Kind, parse_position
from headrace.errors import HeadraceError

app = typer.Typer(help="Manages queues: each message goes to one consumer.", no_args_is_help=True)

# The settings of a queue, by their names in the broker, with their help.
SETTINGS: Mapping[str, str] = {
    "timeout_ms": f"Visibility timeout: a message not settled this long after its delivery is ready again: {DURATION}.",
    "timeout_max_ms": "The most that touches can extend a delivery to.",
    "max_attempts": "Deliveries after which a message that was not finished is dead; 0: no limit.",
    "backoff_ms": "Delays after the first, second, ... failed attempt (10s,1m,5m); the last one repeats. Empty: none.",
    "dead_letter_topic": "The topic for dead messages. Empty: TOPIC.QUEUE.dead.",
    "filter": "Which messages the queue takes, as in `region = eu and not has test`. Empty: all.",
    "order_by_key": "At most one unsettled message of a key at a time.",
    "dead_key": "What a dead message does to the others of its key: release, or park.",
    "lookahead_max": "The most messages that may wait for others of their key before the queue reads no further.",
    "deliveries": "The share of messages whose events are kept in __deliveries: 0 none, 1 all.",
}
FLAGS = ("order_by_key",)
# What the broker gives, and takes, in one request.
PAGE = 500
SELECTED_MAX = 200

Messages = Annotated[
    list[str], typer.Argument(metavar="MESSAGE...", help="PARTITION/OFFSET, as `headrace queue messages` prints it.")
]


class State(StrEnum):
    READY = "ready"
    IN_FLIGHT = "in_flight"
    DEFERRED = "deferred"
    BLOCKED = "blocked"
    DEAD = "dead"


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command an option for each setting. Its parameter `settings` has those that are given."""

    def run(*arguments: Any, **options: Any) -> None:
        given = {name: options.pop(name) for name in SETTINGS}
        settings = {name: _value(name, value) for name, value in given.items() if value is not None}
        command(*arguments, settings=settings, **options)

    return add_options(
        command, run, {name: (_option(name, help), None) for name, help in SETTINGS.items()}, ["settings"]
    )


def _option(name: str, help: str) -> Any:
    words = "--" + name.replace("_", "-")
    if name in FLAGS:
        return Annotated[bool | None, typer.Option(f"{words}/--no-{words[2:]}", help=help)]
    return Annotated[str | None, typer.Option(words, metavar="VALUE", help=help)]


def _value(name: str, value: str | bool) -> object:
    """What is sent; the broker reads text as the setting's type."""
    if isinstance(value, bool) or not name.endswith("_ms"):
        return value
    if name == "backoff_ms":
        return [parse_duration(step) for step in value.split(",") if step.strip()]
    return parse_duration(value)


@app.command("list")
@over_http
def list_queues(api: Api, topic: Annotated[str, typer.Argument(metavar="[TOPIC]", show_default=False)] = "") -> None:
    """Lists the queues of one topic, or all."""
    queues = api.get(queue_path(topic, "").removesuffix("/") if topic else "/v1/queues")["queues"]
    columns: dict[str, str | Callable[[Any], object]] = {
        "topic": "topic",
        "queue": "queue",
        "ready": "depth",
        "in flight": "in_flight",
        "deferred": "deferred",
        "blocked": "blocked",
        "stuck": "stuck",
        "dead": "dead",
        "oldest": _age,
        "consumers": "consumers",
    }
    if not any(queue["stuck"] for queue in queues):
        del columns["stuck"]
    if any(queue["paused"] for queue in queues):
        columns[""] = lambda queue: "paused" if queue["paused"] else ""
    show(queues, api.as_json, columns)


@app.command("show")
@over_http
def show_queue(api: Api, topic: Topic, queue: Queue) -> None:
    """Shows the counts, the settings and the consumers of a queue."""
    _print(api, api.get(queue_path(topic, queue)))


@app.command()
@over_http
@with_settings
def create(
    api: Api,
    topic: Topic,
    queue: Queue,
    settings: dict[str, object],
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="POSITION",
            help=f"Where to begin: {POSITION}. By default the first queue of a topic begins at its earliest message, "
            "a later one at the end.",
        ),
    ] = "",
) -> None:
    """Creates a queue."""
    body: dict[str, Any] = {"settings": settings}
    if start:
        body["from"] = _begin(start)
    api.print_answer(api.ask("PUT", queue_path(topic, queue), body))


@app.command("set")
@over_http
@with_settings
def set_settings(api: Api, topic: Topic, queue: Queue, settings: dict[str, object]) -> None:
    """Changes settings of a queue. They take effect at once."""
    if not settings:
        words = ", ".join("--" + name.replace("_", "-") for name in SETTINGS)
        raise HeadraceError(f"no setting is given. Use {words}.")
    api.print_answer(api.ask("PATCH", queue_path(topic, queue), {"settings": settings}))


@app.command()
@over_http
def pause(api: Api, topic: Topic, queue: Queue) -> None:
    """Pauses deliveries. Messages in flight can still be settled."""
    api.print_answer(api.ask("POST", queue_path(topic, queue) + "/pause"))


@app.command()
@over_http
def unpause(api: Api, topic: Topic, queue: Queue) -> None:
    """Resumes deliveries."""
    api.print_answer(api.ask("POST", queue_path(topic, queue) + "/unpause"))


@app.command()
@over_http
def empty(api: Api, topic: Topic, queue: Queue, yes: Yes = False) -> None:
    """Settles all messages of a queue without delivering them. The topic keeps its messages."""
    if not yes:
        confirm(f"Settle all messages of queue {queue} of {topic} undelivered?")
    api.print_answer(api.ask("POST", queue_path(topic, queue) + "/empty"))


@app.command()
@over_http
def delete(api: Api, topic: Topic, queue: Queue, yes: Yes = False) -> None:
    """Deletes a queue and its state, and disconnects its consumers. The topic keeps its messages."""
    if not yes:
        confirm(f"Delete queue {queue} of {topic}?")
    api.print_answer(api.ask("DELETE", queue_path(topic, queue)))


@app.command()
@over_http
def peek(
    api: Api,
    topic: Topic,
    queue: Queue,
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="The most messages to show.")] = 10,
) -> None:
    """Shows the next messages of a queue without delivering them."""
    messages: list[dict[str, Any]] = []
    behind: str | None = ""
    # The broker cuts answers with large messages, and gives the place to continue from.
    while behind is not None and len(messages) < limit:
        wanted = {"limit": limit - len(messages), "from": behind}
        answer = api.ask("GET", queue_path(topic, queue) + "/peek", query=wanted)
        messages += answer["messages"]
        behind = answer["next"]
    columns = {
        **{each: each for each in ("partition", "offset", "attempts")},
        "age": lambda each: format_age(each["timestamp"]),
        "key": lambda each: preview(each, "key"),
        "value": lambda each: f"({each['value_bytes']} bytes)" if each.get("cut") else preview(each, "value"),
    }
    show(messages, api.as_json, columns)


@app.command()
@over_http
def messages(
    api: Api,
    topic: Topic,
    queue: Queue,
    state: Annotated[State, typer.Option(help="Which messages.")] = State.READY,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="The most messages to show.")] = 50,
) -> None:
    """Shows the messages of a queue in one state. Nothing changes."""
    found: list[dict[str, Any]] = []
    after: str | None = ""
    while after is not None and len(found) < limit:
        query = {"state": state.value, "limit": min(PAGE, limit - len(found)), "after": after}
        answer = api.ask("GET", queue_path(topic, queue) + "/messages", query=query)
        found += answer["messages"]
        after = answer["next"]
    now = time.time_ns() // 1_000_000
    columns: dict[str, str | Callable[[Any], object]] = {
        "message": lambda each: (
            f"parked/{each['parked']}" if "parked" in each else f"{each['partition']}/{each['offset']}"
        ),
        "attempts": "attempts",
        "age": lambda each: format_age(each["timestamp"]),
    }
    if state is State.IN_FLIGHT:
        columns |= {"consumer": lambda each: each.get("consumer", ""), "for": _until("deadline_ms", now)}
    if state is State.DEFERRED:
        columns["due in"] = _until("due_ms", now)
    columns |= {"key": lambda each: preview(each, "key"), "value": lambda each: preview(each, "value")}
    if any("error" in each for each in found):
        columns["error"] = lambda each: each.get("error", "")
    show(found, api.as_json, columns)


def _until(name: str, now: int) -> Callable[[Any], object]:
    return lambda each: format_rough(max(0, each[name] - now)) if name in each else ""


@app.command()
@over_http
def settle(api: Api, topic: Topic, queue: Queue, messages: Messages, yes: Yes = False) -> None:
    """Settles single messages, also those in flight. The topic keeps them."""
    if not yes:
        confirm(f"Settle {len(messages)} messages of queue {queue} of {topic}, so that they are not delivered again?")
    _intervene(api, topic, queue, "settle", messages, {})


@app.command()
@over_http
def requeue(
    api: Api,
    topic: Topic,
    queue: Queue,
    messages: Messages,
    delay: Annotated[str, typer.Option(metavar="DURATION", help=f"Deliver them after this: {DURATION}.")] = "0",
) -> None:
    """Lets single messages be delivered again, also those in flight or without attempts left."""
    _intervene(api, topic, queue, "requeue", messages, {"delay_ms": parse_duration(delay)})


@app.command()
@over_http
def reject(
    api: Api,
    topic: Topic,
    queue: Queue,
    messages: Messages,
    error: Annotated[str, typer.Option(metavar="TEXT", help="What the dead letters give as the reason.")] = "",
) -> None:
    """Sends single messages to the dead-letter topic, also those in flight or without attempts left."""
    _intervene(api, topic, queue, "reject", messages, {"error": error})


def _intervene(api: Api, topic: str, queue: str, act: str, messages: list[str], more: Mapping[str, Any]) -> None:
    results: list[dict[str, Any]] = []
    places = [_place(each) for each in messages]
    for first in range(0, len(places), SELECTED_MAX):
        body = {"messages": places[first : first + SELECTED_MAX], **more}
        results += api.ask("POST", f"{queue_path(topic, queue)}/messages/{act}", body)["results"]
    api.print_answer({"results": results})
    refused = [each for each in results if each["outcome"] != "done"]
    if refused:
        first_refused = refused[0]
        raise HeadraceError(
            f"{len(refused)} of {len(results)} messages stay as they are. {first_refused['partition']}/"
            f"{first_refused['offset']}: {first_refused['reason']}."
        )


def _place(text: str) -> dict[str, int]:
    """A message as `messages` prints it."""
    first, _, second = text.rpartition("/")
    if second.isdecimal() and len(second) < 19:
        if first == "parked":
            return {"parked": int(second)}
        if first.isdecimal() and len(first) < 10:
            return {"partition": int(first), "offset": int(second)}
    raise HeadraceError(
        f"{text!r} is no message of a queue. Use PARTITION/OFFSET, as `headrace queue messages` prints it."
    )


def _begin(text: str) -> object:
    position = parse_position(text, time.time_ns() // 1_000_000)
    if position.kind is Kind.OFFSET:
        return position.value
    return {"time_ms": position.value} if position.kind is Kind.TIME else position.kind.value


def _print(api: Api, queue: Mapping[str, Any]) -> None:
    if api.as_json:
        print_json(queue)
        return
    state = ", paused" if queue["paused"] else ""
    print(f"queue {queue['queue']} of {queue['topic']}{state}; consumers: {queue['consumers']}")
    print(
        f"{queue['depth']} ready, {queue['in_flight']} in flight, {queue['deferred']} deferred, "
        f"{queue['blocked']} blocked; the oldest is {_age(queue) or '-'} old"
    )
    print(
        f"since the broker started: {queue['delivered']} delivered, {queue['finished']} finished, "
        f"{queue['requeued']} requeued, {queue['timed_out']} timed out, {queue['dead']} dead"
    )
    print(f"dead letters go to {queue['dead_letter_topic']}")
    if queue["condemned"] or queue["stuck"]:
        why = f": {queue['move_error']}" if queue["move_error"] else ""
        print(f"{queue['condemned']} dead messages are being moved there, {queue['stuck']} are stuck{why}")
    settings = [{"setting": name, "value": _format(name, value)} for name, value in queue["settings"].items()]
    for rows in (settings, queue["partitions"], queue["subscriptions"]):
        if rows:
            print()
            show(rows, False, {each.replace("_", " "): each for each in rows[0]})


def _format(name: str, value: Any) -> str:
    """A setting's value in the form that `set` takes."""
    if isinstance(value, list):
        return ",".join(format_duration(step) for step in value) or "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return format_duration(value) if name.endswith("_ms") else str(value) or "-"


def _age(queue: Mapping[str, Any]) -> str:
    return format_rough(queue["age_ms"]) if queue["age_ms"] else ""
