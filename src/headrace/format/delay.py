"""How a message asks to be delivered later, and how much later: known to producers and to the broker's timer."""

from __future__ import annotations

DELIVER_AT: bytes = b"headrace-deliver-at"
# As far as the timer's wheel reaches (`timer.py`), some 25 years: no delay up to this is too long.
MAX_DELAY_MS: int = 60_000 * 60**3 * 61
