"""The one durable timer, for every door: messages that wait until their time has come. See `docs/timer.md`."""

from headrace.broker.timer.pending import Pending
from headrace.broker.timer.timer import TOPIC, Timer

__all__ = ["TOPIC", "Pending", "Timer"]
