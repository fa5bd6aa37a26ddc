"""Figures of the pushing for Prometheus: requests by OpenTelemetry's name for those of HTTP clients, and whether an
endpoint is being waited for. They stand beside those that every application of the framework has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from headrace.sdk.metrics import Durations
from headrace.webhooks.endpoint import Answer, Verdict

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric


class Figures:
    """Of one endpoint."""

    def __init__(self, group: str, host: str) -> None:
        self.group = group
        self.host = host
        self.requests: dict[tuple[str, str], Durations] = {}
        """By status and kind of failure."""
        self.messages: dict[Verdict, int] = dict.fromkeys(Verdict, 0)
        self.waits = False
        """Nothing is sent, because the endpoint takes nothing."""

    def count_answer(self, answer: Answer, messages: int) -> None:
        """A request has had its answer, or none."""
        status = str(answer.status) if answer.status else ""
        error = "" if answer.verdict is Verdict.TAKEN else status or answer.verdict.name.lower()
        durations = self.requests.get((status, error))
        if durations is None:
            durations = self.requests[status, error] = Durations()
        durations.add(answer.seconds)
        self.messages[answer.verdict] += messages


class Collector:
    """Of all of them, for prometheus-client."""

    def __init__(self, figures: list[Figures]) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        requests = HistogramMetricFamily(
            "http_client_request_duration_seconds",
            "How long endpoints took for their answers.",
            labels=[
                "http_request_method",
                "server_address",
                "messaging_consumer_group_name",
                "http_response_status_code",
                "error_type",
            ],
        )
        messages = CounterMetricFamily(
            "headrace_webhook_messages",
            "Messages in requests, by what became of the request.",
            labels=["messaging_consumer_group_name", "result"],
        )
        waits = GaugeMetricFamily(
            "headrace_webhook_waiting",
            "1 while an endpoint takes nothing, and nothing is sent to it.",
            labels=["messaging_consumer_group_name"],
        )
        for each in self._figures:
            # Copies, because this is another thread.
            for (status, error), found in list(each.requests.items()):
                requests.add_metric(["POST", each.host, each.group, status, error], *found.sample())
            for verdict, count in list(each.messages.items()):
                messages.add_metric([each.group, verdict.name.lower()], count)
            waits.add_metric([each.group], float(each.waits))
        yield from (requests, messages, waits)
