"""Figures for Prometheus, by OpenTelemetry's names for messaging.

Events are added to plain numbers, once for each batch, and become text only when they are scraped: that keeps them off
the path of messages. Code that adds often keeps its number at hand. They are read by a registry of the application's
own (`registry.register(app.metrics)`), or over HTTP, in a thread that answers even when a handler blocks the loop.
"""

from __future__ import annotations

import socket
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from headrace.sdk.message import Outgoing

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from headrace.sdk.runner import SubscriptionRunner

# The conventions' bounds, and two below them: a queue's own share of the time is far less than 5 ms.
BOUNDS = (0.0002, 0.001, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
BUCKETS = (*map(str, BOUNDS), "+Inf")

NO_LABELS: Mapping[str, str] = MappingProxyType({})
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

    def sample(self) -> tuple[float]:
        return (self.value,)


class Durations:
    """A histogram."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * len(BUCKETS)
        self.total = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.total += seconds

    def sample(self) -> tuple[list[tuple[str, int]], float]:
        return list(zip(BUCKETS, accumulate(self.counts), strict=True)), self.total


Figure = TypeVar("Figure", bound="Count | Durations")


class Family(Generic[Figure]):
    """One metric: a figure for each combination of its labels' values."""

    def __init__(self, kind: type[Figure], name: str, text: str, labels: Sequence[str]) -> None:
        self._kind = kind
        self._name = name
        self._text = text
        self._labels = labels
        self._figures: dict[tuple[str, ...], Figure] = {}

    def of(self, *values: str) -> Figure:
        """The figure of these values, in the order of the labels."""
        found = self._figures.get(values)
        if found is None:
            found = self._figures[values] = self._kind()
        return found

    def collect(self, common: Mapping[str, str] = NO_LABELS) -> Metric:
        """As prometheus-client wants it, with labels that are the same for all."""
        from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily

        kind: Any = CounterMetricFamily if self._kind is Count else HistogramMetricFamily
        family: Metric = kind(self._name, self._text, labels=[*common, *self._labels])
        # A copy: this is another thread than the one that adds figures.
        for values, figure in list(self._figures.items()):
            family.add_metric([*common.values(), *values], *figure.sample())  # type: ignore[attr-defined]
        return family


def gauge(
    name: str,
    text: str,
    labels: Sequence[str],
    values: Iterable[tuple[Sequence[str], float]],
    common: Mapping[str, str] = NO_LABELS,
) -> Metric:
    """Values that are read when they are asked for, each with those of its labels."""
    from prometheus_client.metrics_core import GaugeMetricFamily

    family = GaugeMetricFamily(name, text, labels=[*common, *labels])
    for key, value in values:
        family.add_metric([*common.values(), *key], float(value))
    return family


class Collects(Protocol):
    """What a registry of prometheus-client takes."""

    def collect(self) -> Iterator[Metric]: ...


class Metrics:
    """One application's figures: a collector for prometheus-client."""

    def __init__(self, subscriptions: Sequence[SubscriptionRunner], buffered: Callable[[], Mapping[str, int]]) -> None:
        """`buffered`: by wire, how many messages wait to be sent."""
        self.attributes: Mapping[str, str | int] = {}
        """What all figures have in common."""
        self._subscriptions = subscriptions
        self._buffered = buffered
        self.sent = Family(Count, "messaging_client_sent_messages", "Messages that were sent, or failed to be.", SENT)
        self.consumed = Family(Count, "messaging_client_consumed_messages", "Messages that were delivered.", CONSUMED)
        self.processed = Family(Durations, "messaging_process_duration_seconds", "How long handlers took.", PROCESSED)
        self.operated = Family(
            Durations,
            "messaging_client_operation_duration_seconds",
            "How long it took to send, to gather what a handler gets, and to settle.",
            OPERATED,
        )
        self.settled = Family(
            Count, "headrace_sdk_settled_messages", "Messages that were settled, by how.", (*SUBSCRIPTION, "result")
        )
        self.late = Family(
            Count,
            "headrace_sdk_late_settlements",
            "Settlements that came too late: the message was another consumer's by then, or dead.",
            SUBSCRIPTION,
        )

    def count_sent(self, messages: Sequence[Outgoing], seconds: float | None, error: str) -> None:
        """Messages went out together, or failed; None: how long it took is not known."""
        for topic, count in Counter([each.topic for each in messages]).items():
            self.sent.of("publish", topic, error).value += count
            if seconds is not None:
                self.operated.of("publish", topic, "", error, "send").add(seconds)

    def collect(self) -> Iterator[Metric]:
        """All figures, as prometheus-client wants them."""
        common = {name.replace(".", "_"): str(value) for name, value in self.attributes.items()}
        for family in (self.sent, self.consumed, self.processed, self.operated, self.settled, self.late):
            yield family.collect(common)
        running = [(each.name.split("/", 1), each) for each in list(self._subscriptions)]
        for read, name, text in (
            ("waiting", "waiting_messages", "Messages that were delivered and are not settled."),
            ("workers", "workers", "Handlers that may run at a time."),
            ("busy", "busy_messages", "Messages that are being handled."),
            ("paused", "paused", "1 where nothing is taken."),
        ):
            values = [(key, getattr(each, read)) for key, each in running]
            yield gauge(f"headrace_sdk_{name}", text, SUBSCRIPTION, values, common)
        lines = [((wire,), count) for wire, count in self._buffered().items()]
        yield gauge("headrace_sdk_line_messages", "Messages that wait to be sent.", ("wire",), lines, common)


class MetricsServer:
    """Answers Prometheus."""

    def __init__(self, collectors: Iterable[Collects], address: str) -> None:
        """At HOST:PORT; raises OSError where it is taken, ValueError where it is none."""
        from prometheus_client import CollectorRegistry, start_http_server

        host, colon, port = address.rpartition(":")
        if not colon or not port.isdigit():
            raise ValueError(f"metrics must be HOST:PORT (got {address!r})")
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
