"""Write to a database and send a message as one act.

`Outbox.add` puts a message into a table, in the application's own transaction; `Relay` (`headrace outbox relay`) drains
the table to the log, in order, each message once, whatever is killed meanwhile. Needs the extra `sql`.
"""

from headrace.outbox.errors import Away, InDoubt, InvalidMessage, NoOutbox, OutboxError, Refused, TakenOver
from headrace.outbox.outbox import Outbox
from headrace.outbox.publisher import KafkaPublisher
from headrace.outbox.relay import Publisher, Relay, Settings
from headrace.outbox.store import Message, Status, Store

__all__ = [
    "Away",
    "InDoubt",
    "InvalidMessage",
    "KafkaPublisher",
    "Message",
    "NoOutbox",
    "Outbox",
    "OutboxError",
    "Publisher",
    "Refused",
    "Relay",
    "Settings",
    "Status",
    "Store",
    "TakenOver",
]
