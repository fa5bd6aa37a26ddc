"""nan: what is done with each message of x."""

from __future__ import annotations

from headrace.sdk import App, Reject

from nan.config import Config
from nan.events import Event
from nan.work import Work

config = Config.from_environment()
app = App("nan", config.url)
app.provide(Work, Work)


@app.subscribe(config.topic, scenario="task", workers=config.workers)
async def handle(event: Event, work: Work) -> None:
    """Return: done. Raise `Reject`: to the dead letters. Raise `Retry` or anything else: again later."""
    if not event.id:
        raise Reject("no id")
    await work.do(event)
