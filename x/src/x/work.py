"""What handling an event changes. Put your database, or the service that you call, in the place of this."""

from __future__ import annotations

import logging

from x.events import Event

log = logging.getLogger(__name__)


class Work:
    """Given to the handler, so that tests can give another one."""

    async def do(self, event: Event) -> None:
        """May be called twice for one event: after a crash, or when it took too long."""
        log.info("handled %r", event)
