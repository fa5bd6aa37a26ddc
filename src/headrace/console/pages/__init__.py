"""The pages, one in each module, by their paths below a broker's."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.console.pages import (
    access,
    alerts,
    app,
    apps,
    clients,
    cluster,
    dead_letters,
    group,
    groups,
    life,
    messages,
    overview,
    pipeline,
    queue,
    queues,
    timers,
    topic,
    topics,
    transactions,
)
from headrace.console.ui.frame import Build

PAGES: Mapping[str, Build] = {
    "/": overview.build,
    "/alerts": alerts.build,
    "/topics": topics.build,
    "/topic": topic.build,
    "/messages": messages.build,
    "/life": life.build,
    "/find": messages.find,
    "/dead-letters": dead_letters.build,
    "/timers": timers.build,
    "/transactions": transactions.build,
    "/queues": queues.build,
    "/queue": queue.build,
    "/groups": groups.build,
    "/group": group.build,
    "/apps": apps.build,
    "/app": app.build,
    "/clients": clients.build,
    "/pipeline": pipeline.build,
    "/access": access.build,
    "/cluster": cluster.build,
}
