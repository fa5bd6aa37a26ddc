"""An application that is killed: what comes to one topic goes to another, in capitals, exactly once."""

from __future__ import annotations

import sys

from headrace.sdk import App, Message


def main(url: str, group: str, origin: str, target: str) -> None:
    app = App(group, url)

    @app.subscribe(origin, scenario="exactly-once", credit=50)
    async def copy(raw: bytes, message: Message) -> None:
        await app.publish(target, raw.upper(), key=message.key)

    app.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
