"""What each command of nsqlookupd and each route of its HTTP API asks for.

Producers cannot show who they are in its protocol: a rule for ANONYMOUS, from their addresses, lets them register.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.broker.security import Operation
from headrace.broker.security.rights import Declaration, Inside, Open
from headrace.doors.nsq.routes import on_cluster, on_queue, on_topic

REGISTER = on_cluster(Operation.CLUSTER_ACTION)
COMMANDS: Mapping[str, Declaration] = {
    "PING": Open("it says that the producer lives"),
    "IDENTIFY": REGISTER,
    "REGISTER": REGISTER,
    "UNREGISTER": REGISTER,
}
LISTED = Open("shows the topics that the client may describe, and leaves out the rest")
ROUTES: Mapping[str, Declaration] = {
    "GET /ping": Open("a probe learns whether the broker is well"),
    "GET /info": Open("the version is the same for all"),
    "GET /lookup": on_topic(Operation.DESCRIBE),
    "GET /topics": LISTED,
    "GET /channels": on_topic(Operation.DESCRIBE),
    "GET /nodes": LISTED,
    "GET /debug": on_cluster(Operation.DESCRIBE),
    "POST /topic/create": Inside("CREATE topic TOPIC, or CREATE cluster"),
    "POST /topic/delete": on_topic(Operation.DELETE),
    "POST /topic/tombstone": on_topic(Operation.ALTER),
    "POST /channel/create": on_queue(Operation.CREATE),
    "POST /channel/delete": on_queue(Operation.DELETE),
}
