"""A rate, as a leaky bucket: what is used goes in, the rate drains it, and what is in it beyond the burst has to wait
until it would fit. In the long run that lets through what Kafka's windows do; Kafka lets a client that was idle have
ten seconds' worth at once, and this one second's.

A kernel, because every request of a client that has a quota asks here."""

from __future__ import annotations

import cython


@cython.final
@cython.cclass
class Throttling:
    """What came of the quotas of one kind: how often, and for how long, clients were held back; how often refused."""

    def __init__(self) -> None:
        self.throttled = 0
        self.seconds = 0.0
        self.refused = 0


@cython.final
@cython.cclass
class Bucket:
    """The use of one quota."""

    def __init__(self, rate: float, burst_seconds: float, wait_max: float, figures: Throttling) -> None:
        self.rate = rate
        """A second."""
        self.burst = rate * burst_seconds
        self.wait_max = wait_max
        self.figures = figures
        # What is in it, and when that was so.
        self.level = 0.0
        self.then = 0.0

    @cython.ccall
    def charge(self, amount: cython.double, now: cython.double) -> cython.double:
        """Count what a client has used; the seconds that it must wait. `now` is the loop's time."""
        level = self.level - (now - self.then) * self.rate
        self.level = level = (level if level > 0.0 else 0.0) + amount
        self.then = now
        return 0.0 if level <= self.burst else self.hold(level)

    @cython.ccall
    def count(self, amount: cython.double, now: cython.double) -> cython.void:
        """Count what a client has used, for what it does next."""
        level = self.level - (now - self.then) * self.rate
        self.level = (level if level > 0.0 else 0.0) + amount
        self.then = now

    @cython.ccall
    def wait(self, now: cython.double) -> cython.double:
        """The seconds that a client must wait for what it has used before."""
        level = self.level - (now - self.then) * self.rate
        return 0.0 if level <= self.burst else self.hold(level)

    def take(self, amount: float, now: float) -> float:
        """Count what a client is about to use; or the seconds after which it may ask again, and nothing is counted.
        What is more than the whole burst is let through, and waited for by what comes next: or it never could be."""
        level = self.level - (now - self.then) * self.rate
        if level > self.burst:
            self.figures.refused += 1
            return (level - self.burst) / self.rate
        self.level = max(level, 0.0) + amount
        self.then = now
        return 0.0

    def is_exhausted(self, now: float) -> bool:
        """Whether a client would have to wait longer than any is held back at a time."""
        level = self.level - (now - self.then) * self.rate
        return level - self.burst >= self.wait_max * self.rate

    @cython.cfunc
    def hold(self, level: cython.double) -> cython.double:
        wait = min((level - self.burst) / self.rate, self.wait_max)
        self.figures.throttled += 1
        self.figures.seconds += wait
        return wait
