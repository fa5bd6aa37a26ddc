"""Write to a database and send a message as one act.

`Outbox.add` puts a message into a table, in the application's own transaction; `headrace outbox relay` (`relay.Relay`)
drains the table to the log, in order, each message once, whatever is killed meanwhile. Needs the extra `sql`.

Only what an application needs is imported here: it adds messages without loading a client of the broker.
"""

from headrace.outbox.errors import InvalidMessage, OutboxError
from headrace.outbox.outbox import Outbox

__all__ = ["InvalidMessage", "Outbox", "OutboxError"]
