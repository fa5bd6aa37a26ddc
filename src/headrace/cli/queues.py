"""`headrace queue`: make, list, show, change, pause, empty and delete queues, and look at what is next in them."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Annotated, Any

import typer

from headrace.cli.connect import show
from headrace.cli.durations import HELP as DURATION
from headrace.cli.durations import about, parse_duration, spoken
from headrace.cli.over_http import Api, Queue, Topic, Yes, over_http, print_json, queue_path, shown_bytes
from headrace.cli.positions import HELP as POSITION
from headrace.cli.positions import Kind, parse_position
from headrace.errors import HeadraceError

app = typer.Typer(help="Queues: every message goes to one consumer, and its state is kept.", no_args_is_help=True)

# The settings of a queue, by their names in the broker, with the words of `--help`.
SETTINGS: Mapping[str, str] = {
    "timeout_ms": f"A message that is not settled this long after its delivery is ready again: {DURATION}.",
    "timeout_max_ms": "However often a delivery is touched, it times out after this long.",
    "max_attempts": "After so many deliveries without success a message is dead; 0: never.",
    "backoff_ms": "The delays after the first, second, ... failed attempt (10s,1m,5m); the last one repeats. "
    "An empty text: at once.",
    "dead_letter_topic": "Where dead messages go; an empty text: TOPIC.QUEUE.dead.",
    "filter": "Which messages the queue takes, as in `region = eu and not has test`; an empty text: all.",
    "order_by_key": "At most one unsettled message of a key at a time.",
    "dead_key": "What a dead message does to the others of its key: release, or park.",
    "lookahead_max": "How many messages may wait for others of their key before the queue looks no further.",
    "deliveries": "The share of messages whose events go to __deliveries: 0 none, 1 all.",
}
FLAGS = ("order_by_key",)


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command an option for each setting; its parameter `settings` gets those that were given."""
    own = inspect.signature(command, eval_str=True)
    parameters = [each for each in own.parameters.values() if each.name != "settings"]
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=_option(name, help), default=None)
        for name, help in SETTINGS.items()
    ]

    @wraps(command)
    def run(*arguments: Any, **options: Any) -> None:
        given = {name: options.pop(name) for name in SETTINGS}
        settings = {name: _value(name, value) for name, value in given.items() if value is not None}
        command(*arguments, settings=settings, **options)

    run.__signature__ = own.replace(parameters=[*parameters, *added])  # type: ignore[attr-defined]
    return run


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
    """List the queues, of one topic or of all."""
    queues = api.get(queue_path(topic, "").removesuffix("/") if topic else "/v1/queues")["queues"]
    if api.as_json:
        print_json(queues)
        return
    rows = [{**queue, "state": "paused" if queue["paused"] else "", "age": _age(queue)} for queue in queues]
    columns = {
        "topic": "topic",
        "queue": "queue",
        "depth": "ready",
        "in_flight": "in flight",
        "deferred": "deferred",
        "blocked": "blocked",
        "stuck": "stuck",
        "dead": "dead",
        "age": "oldest",
        "consumers": "consumers",
    }
    if not any(queue["stuck"] for queue in queues):
        del columns["stuck"]
    if any(queue["paused"] for queue in queues):
        columns["state"] = ""
    show(rows, False, columns)


@app.command("show")
@over_http
def show_queue(api: Api, topic: Topic, queue: Queue) -> None:
    """Show a queue: its figures, its settings and its consumers."""
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
            help=f"Where to begin: {POSITION}. By default the first queue of a topic begins with what the topic holds, "
            "a later one at the end.",
        ),
    ] = "",
) -> None:
    """Make a queue."""
    body: dict[str, Any] = {"settings": settings}
    if start:
        body["from"] = _begin(start)
    made = api.ask("PUT", queue_path(topic, queue), body)
    if api.as_json:
        print_json(made)


@app.command("set")
@over_http
@with_settings
def set_settings(api: Api, topic: Topic, queue: Queue, settings: dict[str, object]) -> None:
    """Change settings of a queue; they take effect at once."""
    if not settings:
        words = ", ".join("--" + name.replace("_", "-") for name in SETTINGS)
        raise HeadraceError(f"say what to set: {words}")
    changed = api.ask("PATCH", queue_path(topic, queue), {"settings": settings})
    if api.as_json:
        print_json(changed)


@app.command()
@over_http
def pause(api: Api, topic: Topic, queue: Queue) -> None:
    """Deliver nothing more until the queue is unpaused; what is in flight can be settled."""
    _done(api, api.ask("POST", queue_path(topic, queue) + "/pause"))


@app.command()
@over_http
def unpause(api: Api, topic: Topic, queue: Queue) -> None:
    """Deliver again."""
    _done(api, api.ask("POST", queue_path(topic, queue) + "/unpause"))


@app.command()
@over_http
def empty(api: Api, topic: Topic, queue: Queue, yes: Yes = False) -> None:
    """Settle everything that the queue has not settled. The topic keeps its messages."""
    if not yes:
        typer.confirm(f"Settle all messages of the queue {queue} of {topic} unseen?", abort=True, err=True)
    _done(api, api.ask("POST", queue_path(topic, queue) + "/empty"))


@app.command()
@over_http
def delete(api: Api, topic: Topic, queue: Queue, yes: Yes = False) -> None:
    """Delete a queue and all that it knows; its consumers are cut off. The topic keeps its messages."""
    if not yes:
        typer.confirm(f"Delete the queue {queue} of {topic}?", abort=True, err=True)
    _done(api, api.ask("DELETE", queue_path(topic, queue)))


@app.command()
@over_http
def peek(
    api: Api,
    topic: Topic,
    queue: Queue,
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="How many messages.")] = 10,
) -> None:
    """Show the messages that would be delivered next; they stay where they are."""
    messages: list[dict[str, Any]] = []
    behind: str | None = ""
    # Answers with large messages are cut, and say where to go on.
    while behind is not None and len(messages) < limit:
        wanted = {"limit": limit - len(messages), "from": behind}
        answer = api.ask("GET", queue_path(topic, queue) + "/peek", query=wanted)
        messages += answer["messages"]
        behind = answer["next"]
    if api.as_json:
        print_json(messages)
        return
    rows = [
        {
            **each,
            "key": shown_bytes(each, "key"),
            "value": f"({each['value_bytes']} bytes)" if each.get("cut") else shown_bytes(each, "value"),
            "age": _since(each["timestamp"]),
        }
        for each in messages
    ]
    columns = ("partition", "offset", "attempts", "age", "key", "value")
    show(rows, False, {each: each for each in columns})


def _begin(text: str) -> object:
    position = parse_position(text, time.time_ns() // 1_000_000)
    if position.kind is Kind.OFFSET:
        return position.value
    return {"time_ms": position.value} if position.kind is Kind.TIME else position.kind.value


def _done(api: Api, answer: Any) -> None:
    if api.as_json:
        print_json(answer)


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
        print(f"{queue['condemned']} dead messages are on their way there, {queue['stuck']} are stuck{why}")
    settings = [{"setting": name, "value": _written(name, value)} for name, value in queue["settings"].items()]
    for rows in (settings, queue["partitions"], queue["subscriptions"]):
        if rows:
            print()
            show(rows, False, {each: each.replace("_", " ") for each in rows[0]})


def _written(name: str, value: Any) -> str:
    """A setting's value in the form that `set` takes."""
    if isinstance(value, list):
        return ",".join(spoken(step) for step in value) or "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return spoken(value) if name.endswith("_ms") else str(value) or "-"


def _age(queue: Mapping[str, Any]) -> str:
    return about(queue["age_ms"]) if queue["age_ms"] else ""


def _since(timestamp: int) -> str:
    return about(max(0, time.time_ns() // 1_000_000 - timestamp)) if timestamp >= 0 else ""
