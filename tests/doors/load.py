"""A publisher that is busy while a broker ends, and what it may then expect."""

from __future__ import annotations

import threading

from tests.doors.adapter import Client, DoorRefused
from tests.waiting import SECONDS, wait_until

LOAD = 40
"""Requests that are acknowledged before a broker under load is ended."""


class Load:
    """A publisher in a thread, until it is ended or the broker is: one message and several by one request in turn."""

    def __init__(self, client: Client, topic: str, batches: bool, name: str = "load") -> None:
        self.tried: list[list[bytes]] = []
        self.acknowledged: list[list[bytes]] = []
        self.failure: BaseException | None = None
        self._client = client
        self._topic = topic
        self._batches = batches
        self._name = name.encode()
        self._ended = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._ended:
                number = len(self.tried)
                size = 4 if self._batches and number % 2 else 1
                self.tried.append([b"%s %d.%d" % (self._name, number, part) for part in range(size)])
                if size == 1:
                    self._client.publish(self._topic, self.tried[-1][0])
                else:
                    self._client.publish_all(self._topic, self.tried[-1])
                self.acknowledged.append(self.tried[-1])
        except (DoorRefused, OSError):
            pass
        except BaseException as error:
            self.failure = error

    def wait(self) -> None:
        """Until it is well under way."""
        wait_until(lambda: len(self.acknowledged) >= LOAD or not self._thread.is_alive(), lambda: len(self.tried))
        assert self._thread.is_alive(), self.failure

    def end(self) -> None:
        """End it with what is under way, which is acknowledged."""
        self._ended = True
        self._thread.join(SECONDS)
        assert not self._thread.is_alive(), "a publisher is not answered"
        assert self.acknowledged == self.tried, self.failure
        self._client.close()

    def abandon(self) -> None:
        """End it after its broker, which leaves the last request without an answer."""
        self._ended = True
        self._client.close()
        self._thread.join(SECONDS)
        assert not self._thread.is_alive(), "a publisher hangs after its broker has ended"
        assert self.failure is None, self.failure

    def check(self, found: list[bytes], whole: bool) -> None:
        """All that was acknowledged is there, everything once and in order, and no request in part."""
        there = set(found)
        assert found == [each for request in self.tried for each in request if each in there]
        lost = [each for request in self.acknowledged for each in request if each not in there]
        assert not lost, f"{len(lost)} acknowledged messages are lost: {lost[:5]}"
        if whole:
            assert not [request for request in self.tried if 0 < len(there & set(request)) < len(request)]
