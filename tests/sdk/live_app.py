"""An application as a process of its own, for tests that set it while it works: URL, NAME, TOPIC, SCENARIO, TRACE.

It writes a line for each call of its handler to a file, as `value began ended pid`, in one write, so that nothing is
lost with the process.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time

from headrace.sdk import App

HANDLING_SECONDS = 0.004


def main(url: str, name: str, topic: str, scenario: str, trace: str) -> None:
    out = os.open(trace, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    app = App(name, url, owner="team-orders", description="pays orders", contacts=["orders@example.org"])

    @app.subscribe(topic, scenario=scenario, workers=2, credit=50, description="each order once")
    async def pay(value: str) -> None:
        began = time.time()
        await asyncio.sleep(HANDLING_SECONDS)
        os.write(out, f"{value} {began:.6f} {time.time():.6f} {os.getpid()}\n".encode())

    app.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
