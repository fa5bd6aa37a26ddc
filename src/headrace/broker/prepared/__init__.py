"""Half messages: prepared first, seen by readers only once they are committed."""

from headrace.broker.prepared.checking import Check, Listener
from headrace.broker.prepared.prepared import HalfMessages, Standing
from headrace.broker.prepared.records import Message, State

__all__ = ["Check", "HalfMessages", "Listener", "Message", "Standing", "State"]
