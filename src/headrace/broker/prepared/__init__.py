"""Half messages: prepared first, seen by readers only once they are committed."""

from headrace.broker.prepared.check_back import Check, Listener
from headrace.broker.prepared.entries import Message, State
from headrace.broker.prepared.prepared import PreparedMessages, PreparedStatus

__all__ = ["Check", "Listener", "Message", "PreparedMessages", "PreparedStatus", "State"]
