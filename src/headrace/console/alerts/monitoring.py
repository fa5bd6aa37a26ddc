"""The same rules for Prometheus, and a dashboard for Grafana, from the metrics of docs/metrics.md."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.console.client.models import Rule

# By figure: the expression, in which SCOPE stands for the labels that a rule's patterns ask for, and those labels.
EXPRESSIONS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "group_lag": ("headrace_group_lag{SCOPE}", ("group", "topic")),
    "group_lag_growth": ("deriv(headrace_group_lag{SCOPE}[5m])", ("group", "topic")),
    "queue_depth": ("headrace_queue_ready{SCOPE}", ("topic", "queue")),
    "queue_oldest_seconds": ("headrace_queue_oldest_seconds{SCOPE}", ("topic", "queue")),
    "dead_letters_rate": ("rate(headrace_queue_dead_total{SCOPE}[5m])", ("topic", "queue")),
    "error_rate": ("sum by (instance) (rate(headrace_request_errors_total[5m]))", ()),
    "throughput_drop": (
        "100 * (1 - sum by (instance) (rate(headrace_topic_bytes_in_total{SCOPE}[10m]))"
        " / (sum by (instance) (rate(headrace_topic_bytes_in_total{SCOPE}[20m] offset 1d)) > 0))",
        ("topic",),
    ),
    "offline_partitions": ("headrace_offline_partitions", ()),
    "connections_refused": ("rate(headrace_connections_refused_total[5m])", ()),
    "broker_away_seconds": (
        "(time() - max(max_over_time(timestamp(headrace_topics)[1h:15s]))) or absent(headrace_topics) * 1e9",
        (),
    ),
}


def expression(rule: Rule) -> str | None:
    """What Prometheus evaluates for a rule; None: it cannot."""
    found = EXPRESSIONS.get(rule.figure)
    if found is None or rule.scope.get("owner"):
        return None
    template, labels = found
    matchers = [f"{name}=~{json.dumps(_regex(rule.scope[name]))}" for name in labels if rule.scope.get(name)]
    scope = "{" + ",".join(matchers) + "}" if matchers else ""
    return f"{template.replace('{SCOPE}', scope)} {rule.compare} {rule.threshold:g}"


def _regex(pattern: str) -> str:
    """A pattern with * and ? as Prometheus reads it."""
    special = ".+()[]{}|^$\\"
    return "".join({"*": ".*", "?": "."}.get(each, f"\\{each}" if each in special else each) for each in pattern)


def prometheus_rules(rules: Iterable[Rule]) -> str:
    """A rule file of Prometheus, in YAML."""
    lines = ["# Made by `headrace monitoring export`: docs/console.md.", "groups:", "- name: headrace", "  rules:"]
    left_out = []
    for rule in rules:
        text = expression(rule)
        if text is None or not rule.enabled:
            left_out.append(f"{rule.id} ({rule.figure})")
            continue
        labels = {"severity": rule.severity, **rule.labels}
        notes = {"summary": rule.name, **({"runbook_url": rule.runbook} if rule.runbook else {})}
        lines += [f"  - alert: {json.dumps(rule.id)}", f"    expr: {json.dumps(text)}"]
        lines += [f"    for: {rule.for_ms // 1000}s"] if rule.for_ms else []
        lines += ["    labels:", *(f"      {name}: {json.dumps(value)}" for name, value in labels.items())]
        lines += ["    annotations:", *(f"      {name}: {json.dumps(value)}" for name, value in notes.items())]
    if len(lines) == 4:
        lines[3] = "  rules: []"
    if left_out:
        lines.append(f"# By the console alone, which has figures beyond the metrics: {', '.join(left_out)}.")
    return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class Panel:
    """A chart of the dashboard."""

    title: str
    unit: str
    targets: tuple[tuple[str, str], ...]
    """Expression and legend."""


PANELS = (
    Panel("Traffic in", "Bps", (("sum(rate(headrace_topic_bytes_in_total[1m]))", "in"),)),
    Panel("Traffic out", "Bps", (("sum(rate(headrace_topic_bytes_out_total[1m]))", "out"),)),
    Panel("Requests", "reqps", (("sum by (api) (rate(headrace_requests_total[1m]))", "{{api}}"),)),
    Panel(
        "Latency, p99",
        "s",
        (("histogram_quantile(0.99, sum by (le, api) (rate(headrace_request_seconds_bucket[5m])))", "{{api}}"),),
    ),
    Panel("Errors", "reqps", (("sum by (api, error) (rate(headrace_request_errors_total[1m]))", "{{api}} {{error}}"),)),
    Panel("Lag of groups", "short", (("sum by (group) (headrace_group_lag)", "{{group}}"),)),
    Panel("Ready in queues", "short", (("headrace_queue_ready", "{{topic}}/{{queue}}"),)),
    Panel("In flight", "short", (("headrace_queue_in_flight", "{{topic}}/{{queue}}"),)),
    Panel("Oldest message of a queue", "s", (("headrace_queue_oldest_seconds", "{{topic}}/{{queue}}"),)),
    Panel("Dead letters", "cps", (("rate(headrace_queue_dead_total[5m])", "{{topic}}/{{queue}}"),)),
    Panel("Connections", "short", (("headrace_connections", "{{door}}"),)),
    Panel("Offline partitions", "short", (("headrace_offline_partitions", ""),)),
    Panel("Timers that wait", "short", (("headrace_timer_pending", ""),)),
    Panel("Open transactions", "short", (("headrace_transactions_open", ""),)),
)


def grafana_dashboard() -> dict[str, Any]:
    """A dashboard of Grafana, which asks for its Prometheus when it is imported."""
    source = {"type": "prometheus", "uid": "${DS_PROMETHEUS}"}
    panels = []
    for place, panel in enumerate(PANELS):
        targets = [
            {"expr": expr, "legendFormat": legend, "refId": chr(65 + number), "datasource": source}
            for number, (expr, legend) in enumerate(panel.targets)
        ]
        panels.append(
            {
                "id": place + 1,
                "type": "timeseries",
                "title": panel.title,
                "datasource": source,
                "gridPos": {"x": 12 * (place % 2), "y": 8 * (place // 2), "w": 12, "h": 8},
                "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
                "targets": targets,
            }
        )
    return {
        "__inputs": [{"name": "DS_PROMETHEUS", "label": "Prometheus", "type": "datasource", "pluginId": "prometheus"}],
        "title": "Headrace",
        "uid": "headrace",
        "schemaVersion": 39,
        "version": 1,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "tags": ["headrace"],
        "panels": panels,
    }
