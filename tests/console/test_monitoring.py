"""What `headrace monitoring export` writes: judged by Debian's Prometheus, which finds every metric that it names."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bench.peers import free_port
from confluent_kafka import Consumer, Producer
from tests.serve_process import ServeProcess
from tests.waiting import wait_until

from headrace.cli.app import run
from headrace.console.alerts.defaults import DEFAULTS
from headrace.console.alerts.monitoring import EXPRESSIONS, PANELS, expression, grafana_dashboard, prometheus_rules
from headrace.console.client.models import Rule

PROMETHEUS = os.environ.get("PROMETHEUS") or shutil.which("prometheus") or ""
NAMES = re.compile(r"headrace_[a-z0-9_]+")


def metrics_of(text: str) -> set[str]:
    return set(NAMES.findall(text))


def test_patterns_become_matchers() -> None:
    rule = Rule(id="r", name="R", figure="group_lag", threshold=10, scope={"group": "bill*.x", "topic": ""})
    assert expression(rule) == 'headrace_group_lag{group=~"bill.*\\\\.x"} > 10'
    assert expression(Rule(id="r", name="R", figure="group_lag", threshold=1, scope={"owner": "ann"})) is None
    assert expression(Rule(id="r", name="R", figure="disk_used_percent", threshold=1)) is None
    assert "rules: []" in prometheus_rules([])


def test_every_metric_is_documented() -> None:
    known = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    named = metrics_of(json.dumps(grafana_dashboard())) | metrics_of(prometheus_rules(DEFAULTS))
    for name in named:
        assert f"`{re.sub('_bucket$', '', name)}`" in known


def test_the_command_writes_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr("sys.argv", ["headrace", "monitoring", "export", "--to", str(tmp_path / "out")])
    with pytest.raises(SystemExit) as ended:
        run()
    assert ended.value.code in (0, None)
    assert json.loads((tmp_path / "out" / "headrace-dashboard.json").read_text())["title"] == "Headrace"
    assert "groups:" in (tmp_path / "out" / "headrace-rules.yml").read_text()


class Prometheus:
    """Debian's, which scrapes a broker each second."""

    def __init__(self, folder: Path, target: str, rules: str) -> None:
        (folder / "rules.yml").write_text(rules)
        (folder / "prometheus.yml").write_text(
            "global: {scrape_interval: 1s, evaluation_interval: 1s}\nrule_files: [rules.yml]\n"
            f"scrape_configs: [{{job_name: headrace, static_configs: [{{targets: ['{target}']}}]}}]\n"
        )
        self.address = f"127.0.0.1:{free_port()}"
        flags = [f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'tsdb'}"]
        with (folder / "prometheus.log").open("w") as log:
            self._process = subprocess.Popen(
                [PROMETHEUS, *flags, f"--web.listen-address={self.address}"], stdout=log, stderr=log
            )

    def ask(self, path: str, **query: str) -> Any:
        try:
            with urllib.request.urlopen(
                f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(query)}", timeout=10
            ) as answer:
                return json.load(answer)["data"]
        except OSError:
            return None

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(20)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[ServeProcess]:
    with ServeProcess(tmp_path / "data", "--http", "127.0.0.1:0") as it:
        yield it


@pytest.mark.skipif(not PROMETHEUS, reason="there is no prometheus: Debian's package is prometheus, or PROMETHEUS=path")
def test_prometheus_loads_the_rules_and_finds_every_metric(broker: ServeProcess, tmp_path: Path) -> None:
    """A group, a queue and an error are there, so that each metric has something to show."""
    producer = Producer({"bootstrap.servers": broker.kafka})
    producer.produce("orders", b"x")
    assert producer.flush(30) == 0
    http = broker.addresses["http"]
    request = urllib.request.Request(
        f"http://{http}/v1/topics/orders/queues/mail",
        b'{"from": "earliest"}',
        {"Content-Type": "application/json"},
        method="PUT",
    )
    urllib.request.urlopen(request).close()
    consumer = Consumer({"bootstrap.servers": broker.kafka, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["orders"])
    message = wait_until(lambda: consumer.poll(1.0), turn=lambda: None)
    assert message.error() is None
    consumer.commit(message, asynchronous=False)
    consumer.close()
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(f"http://{http}/v1/topics/nowhere")
    every = [Rule(id=name, name=name, figure=name, threshold=-1) for name in EXPRESSIONS]
    prometheus = Prometheus(tmp_path, http, prometheus_rules([*DEFAULTS, *every]))
    try:
        groups = wait_until(lambda: (prometheus.ask("rules") or {}).get("groups"))
        assert len(groups[0]["rules"]) == len([each for each in (*DEFAULTS, *every) if expression(each)])
        wanted = metrics_of(prometheus_rules(every)) | metrics_of(json.dumps(grafana_dashboard()))

        def missing() -> set[str]:
            return wanted - set(prometheus.ask("label/__name__/values") or ())

        wait_until(lambda: not missing(), missing)
        for panel in PANELS:
            for expr, _ in panel.targets:
                assert prometheus.ask("query", query=expr) is not None, expr
        wait_until(
            lambda: all(
                each["health"] == "ok" and not each.get("lastError")
                for each in prometheus.ask("rules")["groups"][0]["rules"]
            )
        )
        lag = prometheus.ask("query", query="headrace_group_lag")["result"]
        assert lag[0]["metric"]["group"] == "g"
    finally:
        prometheus.stop()
