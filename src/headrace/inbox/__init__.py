"""Process exactly once: the id or the offset of a message in the same database transaction as its effect.

`Inbox.once` and `Inbox.at` stand around a handler and say whether the message is fresh; one that comes again changes
nothing. For consumer groups of any client, and for queues. Needs the extra `sql`.
"""

from headrace.inbox.errors import InboxError, InvalidId, UnsupportedDatabase
from headrace.inbox.ids import message_id, nsq_message_id
from headrace.inbox.inbox import Inbox
from headrace.inbox.once import Once

__all__ = ["Inbox", "InboxError", "InvalidId", "Once", "UnsupportedDatabase", "message_id", "nsq_message_id"]
