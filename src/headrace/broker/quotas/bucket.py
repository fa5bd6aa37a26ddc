"""A rate, as a leaky bucket: what is used goes in, the rate drains it, and what is in it beyond the burst has to wait
until it would fit. In the long run that lets through what Kafka's windows do; Kafka lets a client that was idle have
ten seconds' worth at once, and this one second's."""

from __future__ import annotations


class Throttling:
    """What came of the quotas of one kind: how often, and for how long, clients were held back; how often refused."""

    __slots__ = ("refused", "seconds", "throttled")

    def __init__(self) -> None:
        self.throttled = 0
        self.seconds = 0.0
        self.refused = 0


class Bucket:
    """The use of one quota."""

    __slots__ = ("__weakref__", "_burst", "_figures", "_level", "_then", "_wait_max", "rate")

    def __init__(self, rate: float, burst_seconds: float, wait_max: float, figures: Throttling) -> None:
        self.rate = rate
        """A second."""
        self._burst = rate * burst_seconds
        self._wait_max = wait_max
        self._figures = figures
        # What is in it, and when that was so.
        self._level = 0.0
        self._then = 0.0

    def charge(self, amount: float, now: float) -> float:
        """Count what a client has used; the seconds that it must wait. `now` is the loop's time."""
        level = self._level - (now - self._then) * self.rate
        self._level = level = (level if level > 0.0 else 0.0) + amount
        self._then = now
        return 0.0 if level <= self._burst else self._wait(level)

    def count(self, amount: float, now: float) -> None:
        """Count what a client has used, for what it does next."""
        level = self._level - (now - self._then) * self.rate
        self._level = (level if level > 0.0 else 0.0) + amount
        self._then = now

    def wait(self, now: float) -> float:
        """The seconds that a client must wait for what it has used before."""
        level = self._level - (now - self._then) * self.rate
        return 0.0 if level <= self._burst else self._wait(level)

    def take(self, amount: float, now: float) -> float:
        """Count what a client is about to use; or the seconds after which it may ask again, and nothing is counted.
        What is more than the whole burst is let through, and waited for by what comes next: or it never could be."""
        level = self._level - (now - self._then) * self.rate
        if level > self._burst:
            self._figures.refused += 1
            return (level - self._burst) / self.rate
        self._level = max(level, 0.0) + amount
        self._then = now
        return 0.0

    def is_exhausted(self, now: float) -> bool:
        """Whether a client would have to wait longer than any is held back at a time."""
        level = self._level - (now - self._then) * self.rate
        return level - self._burst >= self._wait_max * self.rate

    def _wait(self, level: float) -> float:
        wait = min((level - self._burst) / self.rate, self._wait_max)
        self._figures.throttled += 1
        self._figures.seconds += wait
        return wait
