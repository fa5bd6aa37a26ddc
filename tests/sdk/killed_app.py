"""An application that is killed: `killed_app.py URL GROUP FILE SCENARIO...` reads a topic `GROUP-SCENARIO` by each.

When a message is handled, a line `scenario key number` is added to the file, in one write, so that it is not lost with
the process, and the lines of all instances stand in the order in which things happened.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

from headrace.sdk import App

# So slow, and so much in flight, that there is something to lose when an instance is killed, also where what is done is
# committed twice a second only.
HANDLING_SECONDS = 0.01
CREDIT = 200
MORE: dict[str, dict[str, Any]] = {"burst": {"rate": 2_000.0}, "stream": {"batch": 20, "batch_wait": 0.01}}


def main(url: str, group: str, file: str, *scenarios: str) -> None:
    out = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    app = App(group, url)

    def handler(scenario: str) -> Any:
        def lines(*events: dict[str, int]) -> bytes:
            return "".join(f"{scenario} {each['key']} {each['number']}\n" for each in events).encode()

        async def one(event: dict[str, int]) -> None:
            await asyncio.sleep(HANDLING_SECONDS)
            os.write(out, lines(event))

        async def batch(events: list[dict[str, int]]) -> None:
            await asyncio.sleep(HANDLING_SECONDS)
            os.write(out, lines(*events))

        return batch if scenario == "stream" else one

    for scenario in scenarios:
        order = {"ordered_by": "key"} if scenario == "ordered" else {}
        settings = {"credit": CREDIT, **MORE.get(scenario, {}), **order}
        app.subscribe(f"{group}-{scenario}", scenario=scenario, **settings)(handler(scenario))

    async def run() -> None:
        async with app:
            print("ready", flush=True)
            # Nobody reads the log, and a full pipe would stop it.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            await asyncio.Event().wait()

    asyncio.run(run())


if __name__ == "__main__":
    main(*sys.argv[1:])
