"""Figures for Prometheus, by OpenTelemetry's names for messaging.

What happens is added to plain numbers, once for each batch, and becomes text only when somebody asks: that keeps it
out of the way of the messages. Whoever adds often keeps the number at hand. It is asked for by a registry of one's own
(`registry.register(app.metrics)`), or over HTTP, from a thread that answers even when a handler holds up the loop.
"""

from __future__ import annotations

import socket
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Protocol, TypeVar

from headrace.sdk.message import Outgoing

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

# The conventions' bounds, and two below them: a queue's own share of the time is far less than 5 ms.
BOUNDS = (0.0002, 0.001, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
BUCKETS = (*map(str, BOUNDS), "+Inf")

SENT = ("messaging_operation_name", "messaging_destination_name", "error_type")
CONSUMED = ("messaging_operation_name", "messaging_destination_name", "messaging_consumer_group_name")
PROCESSED = (*CONSUMED, "error_type")
OPERATED = (*PROCESSED, "messaging_operation_type")
SUBSCRIPTION = ("messaging_destination_name", "messaging_consumer_group_name")


class Count:
    """A counter."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0


class Durations:
    """A histogram."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * len(BUCKETS)
        self.total = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.total += seconds


Figure = TypeVar("Figure", Count, Durations)


class Watched(Protocol):
    """A subscription at work."""

    @property
    def name(self) -> str: ...
    @property
    def waiting(self) -> int: ...
    @property
    def workers(self) -> int: ...
    @property
    def busy(self) -> int: ...
    @property
    def paused(self) -> bool: ...


class Collects(Protocol):
    """What a registry of prometheus-client takes."""

    def collect(self) -> Iterator[Metric]: ...


class Metrics:
    """One application's figures: a collector for prometheus-client."""

    def __init__(self, subscriptions: Sequence[Watched], lines: Callable[[], Mapping[str, int]]) -> None:
        """`lines`: by wire, how many messages wait to be sent."""
        self.attributes: Mapping[str, str | int] = {}
        """What all figures have in common."""
        self._subscriptions = subscriptions
        self._lines = lines
        self._sent: dict[tuple[str, ...], Count] = {}
        self._consumed: dict[tuple[str, ...], Count] = {}
        self._processed: dict[tuple[str, ...], Durations] = {}
        self._operated: dict[tuple[str, ...], Durations] = {}
        self._settled: dict[tuple[str, ...], Count] = {}
        self._late: dict[tuple[str, ...], Count] = {}

    # --- what happens -------------------------------------------------------------------------------------------------

    def sent(self, messages: Sequence[Outgoing], seconds: float | None, error: str) -> None:
        """Messages went out together, or did not; None: how long it took is not known."""
        counts: dict[str, int] = {}
        for each in messages:
            counts[each.topic] = counts.get(each.topic, 0) + 1
        for topic, count in counts.items():
            _found(self._sent, ("publish", topic, error), Count).value += count
            if seconds is not None:
                _found(self._operated, ("publish", topic, "", error, "send"), Durations).add(seconds)

    def consumed(self, topic: str, group: str) -> Count:
        """Messages that come."""
        return _found(self._consumed, ("receive", topic, group), Count)

    def processed(self, topic: str, group: str, error: str) -> Durations:
        """Handlers that ended so."""
        return _found(self._processed, ("process", topic, group, error), Durations)

    def operated(self, topic: str, group: str, operation: str, kind: str) -> Durations:
        """Calls to the system, or to what stands for it here."""
        return _found(self._operated, (operation, topic, group, "", kind), Durations)

    def settled(self, topic: str, group: str, result: str) -> Count:
        """Messages that are settled so."""
        return _found(self._settled, (topic, group, result), Count)

    def late(self, topic: str, group: str) -> Count:
        """Settlements that came too late."""
        return _found(self._late, (topic, group), Count)

    # --- who asks -----------------------------------------------------------------------------------------------------

    def collect(self) -> Iterator[Metric]:
        """All figures, as prometheus-client wants them."""
        from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        own = [name.replace(".", "_") for name in self.attributes]
        values = [str(value) for value in self.attributes.values()]

        def counter(name: str, text: str, labels: Sequence[str], found: dict[tuple[str, ...], Count]) -> Metric:
            family = CounterMetricFamily(name, text, labels=[*own, *labels])
            # A copy, because this is another thread than the one that adds to it.
            for key, count in list(found.items()):
                family.add_metric([*values, *key], count.value)
            return family

        def durations(name: str, text: str, labels: Sequence[str], found: dict[tuple[str, ...], Durations]) -> Metric:
            family = HistogramMetricFamily(name, text, labels=[*own, *labels])
            for key, each in list(found.items()):
                buckets = list(zip(BUCKETS, accumulate(each.counts), strict=True))
                family.add_metric([*values, *key], buckets, each.total)
            return family

        def gauge(
            name: str, text: str, labels: Sequence[str], found: Iterable[tuple[tuple[str, ...], float]]
        ) -> Metric:
            family = GaugeMetricFamily(name, text, labels=[*own, *labels])
            for key, value in found:
                family.add_metric([*values, *key], value)
            return family

        yield counter("messaging_client_sent_messages", "Messages that were sent, or were to be.", SENT, self._sent)
        yield counter("messaging_client_consumed_messages", "Messages that have come.", CONSUMED, self._consumed)
        yield durations("messaging_process_duration_seconds", "How long handlers took.", PROCESSED, self._processed)
        yield durations(
            "messaging_client_operation_duration_seconds",
            "How long it took to send, to gather what a handler gets, and to settle.",
            OPERATED,
            self._operated,
        )
        yield counter(
            "headrace_sdk_settled_messages",
            "Messages that were settled, by how.",
            (*SUBSCRIPTION, "result"),
            self._settled,
        )
        yield counter(
            "headrace_sdk_late_settlements",
            "Settlements that came too late: the message was another consumer's by then, or dead.",
            SUBSCRIPTION,
            self._late,
        )
        running = [(tuple(each.name.split("/", 1)), each) for each in list(self._subscriptions)]
        for name, text, found in (
            ("waiting_messages", "Messages that have come and are not settled.", [x.waiting for _, x in running]),
            ("workers", "Handlers that may run at a time.", [x.workers for _, x in running]),
            ("busy_messages", "Messages that are being handled.", [x.busy for _, x in running]),
            ("paused", "1 where nothing is taken.", [x.paused for _, x in running]),
        ):
            pairs = [(key, float(value)) for (key, _), value in zip(running, found, strict=True)]
            yield gauge(f"headrace_sdk_{name}", text, SUBSCRIPTION, pairs)
        yield gauge(
            "headrace_sdk_line_messages",
            "Messages that wait to be sent.",
            ("wire",),
            [((wire,), float(count)) for wire, count in self._lines().items()],
        )


class MetricsServer:
    """Answers Prometheus."""

    def __init__(self, collectors: Iterable[Collects], address: str) -> None:
        """At HOST:PORT; raises OSError where it is taken, ValueError where it is none."""
        from prometheus_client import CollectorRegistry, start_http_server

        host, colon, port = address.rpartition(":")
        if not colon or not port.isdigit():
            raise ValueError(f"metrics={address!r}: it must be HOST:PORT")
        registry = CollectorRegistry()
        for each in collectors:
            registry.register(each)
        self._server, self._thread = start_http_server(int(port), host.strip("[]") or "0.0.0.0", registry)
        self.address = f"{host}:{self._server.server_port}"

    def close(self) -> None:
        """Stop answering."""
        # The thread looks twice a second whether it is to stop; this wakes it.
        self._server.socket.shutdown(socket.SHUT_RDWR)
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _found(figures: dict[tuple[str, ...], Figure], key: tuple[str, ...], kind: type[Figure]) -> Figure:
    found = figures.get(key)
    if found is None:
        found = figures[key] = kind()
    return found
