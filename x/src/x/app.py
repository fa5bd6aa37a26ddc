"""x: what is done with each message of -1."""

from __future__ import annotations

from headrace.sdk import App, Reject

from x.config import Config
from x.events import Event
from x.work import Work

config = Config.from_environment()
app = App("x", config.url)
app.provide(Work, Work)


@app.subscribe(config.topic, scenario="task", workers=config.workers)
async def handle(event: Event, work: Work) -> None:
    """Return: done. Raise `Reject`: to the dead letters. Raise `Retry` or anything else: again later."""
    if not event.id:
        raise Reject("no id")
    await work.do(event)
