"""Half messages: prepared first, seen by readers only once they are committed."""

from headrace.broker.prepared.check_back import Check, Listener
from headrace.broker.prepared.entries import TOPIC, Message, State, id_of, parse_id
from headrace.broker.prepared.prepared import PreparedMessages, PreparedStatus

__all__ = ["TOPIC", "Check", "Listener", "Message", "PreparedMessages", "PreparedStatus", "State", "id_of", "parse_id"]
