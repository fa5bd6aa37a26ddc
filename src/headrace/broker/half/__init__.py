"""Half messages: prepared first, seen by readers only once they are committed."""

from headrace.broker.half.checking import Check, Listener
from headrace.broker.half.half import HalfMessages, Standing
from headrace.broker.half.records import Message, State

__all__ = ["Check", "HalfMessages", "Listener", "Message", "Standing", "State"]
