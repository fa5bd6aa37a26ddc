"""What each command of nsqd and each route of its HTTP API asks for. Names are the log's."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.broker.security import Operation
from headrace.broker.security.rights import Declaration, Inside, Open
from headrace.doors.nsq.routes import on_cluster, on_queue, on_topic

SUBSCRIBED = Open("it settles what the subscription was given, and SUB asked for that")
WRITE = Inside("WRITE topic TOPIC, and CREATE topic or cluster where it is missing; the admission asks")
COMMANDS: Mapping[bytes, Declaration] = {
    b"IDENTIFY": Open("a client says what it is"),
    b"AUTH": Open("a client shows who it is"),
    b"SUB": Inside("READ topic TOPIC and READ queue TOPIC/CHANNEL, and CREATE of what is missing; `subscribe` asks"),
    b"PUB": WRITE,
    b"MPUB": WRITE,
    b"DPUB": WRITE,
    b"RDY": SUBSCRIBED,
    b"FIN": SUBSCRIBED,
    b"REQ": SUBSCRIBED,
    b"TOUCH": SUBSCRIBED,
    b"CLS": SUBSCRIBED,
    b"NOP": Open("it does nothing"),
}
ROUTES: Mapping[str, Declaration] = {
    "GET /ping": Open("a probe learns whether the broker is well"),
    "GET /info": on_cluster(Operation.DESCRIBE),
    "GET /stats": on_cluster(Operation.DESCRIBE),
    "POST /pub": on_topic(Operation.WRITE),
    "POST /mpub": on_topic(Operation.WRITE),
    "POST /topic/create": Inside("CREATE topic TOPIC, or CREATE cluster"),
    "POST /topic/delete": on_topic(Operation.DELETE),
    "POST /topic/empty": on_topic(Operation.DELETE),
    "POST /topic/pause": on_topic(Operation.ALTER),
    "POST /topic/unpause": on_topic(Operation.ALTER),
    "POST /channel/create": (*on_topic(Operation.DESCRIBE), *on_queue(Operation.CREATE)),
    "POST /channel/delete": on_queue(Operation.DELETE),
    "POST /channel/empty": on_queue(Operation.ALTER),
    "POST /channel/pause": on_queue(Operation.ALTER),
    "POST /channel/unpause": on_queue(Operation.ALTER),
    "GET /config/{option}": on_cluster(Operation.DESCRIBE_CONFIGS),
    "PUT /config/{option}": on_cluster(Operation.ALTER_CONFIGS),
    "GET /debug/pprof/{page}": on_cluster(Operation.DESCRIBE_CONFIGS),
}
