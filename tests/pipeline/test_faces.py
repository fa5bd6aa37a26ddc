"""The examples for Spark's other faces (SQL, Connect, declarative pipelines) and for schedulers."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import typer
from tests.pipeline.topics import Topics

from headrace.cli.pipeline import app
from headrace.client import EARLIEST, LATEST, Client
from headrace.pipeline.interpreter import interpreter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLES = Path(__file__).parents[2] / "examples" / "pipeline"
ADDRESS = "127.0.0.1:9092"
NOON = round(datetime(2026, 11, 17, 12, tzinfo=UTC).timestamp() * 1_000)
DAY = 24 * 3_600_000
# By customer, of ORDERS orders.
ORDERS, TOTALS = 10, {"ada": 600.0, "bob": 750.0}


def fill(topics: Topics, topic: str, time: int = NOON) -> None:
    """Orders of this time, and one record that is none."""
    orders = [json.dumps(order(number)).encode() for number in range(ORDERS)]
    topics.fill(topic, [*orders, b"no order"], timestamp=time)


def values(topics: Topics, topic: str) -> list[bytes]:
    async def ask(client: Client) -> list[bytes]:
        async with client.consumer(committed=True) as consumer:
            await consumer.assign({(topic, 0): EARLIEST})
            ends = await client.admin.list_offsets({(topic, 0): LATEST}, committed=True)
            found = consumer.records({each: entry.offset for each, entry in ends.items()})
            return [record.value or b"" async for record in found]

    return topics.ask(ask)


def order(number: int) -> dict[str, object]:
    return {"id": number, "customer": ("ada", "bob")[number % 2], "amount": 30.0 * number}


def run(*command: str, folder: Path) -> str:
    """The output of a program that Spark is a part of."""
    home = Path(pytest.importorskip("pyspark").__file__).parent
    tools = f"{Path(sys.executable).parent}:{home / 'bin'}:{os.environ['PATH']}"
    env = {"PATH": tools, "SPARK_HOME": str(home), "PYSPARK_PYTHON": interpreter(), "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(command, cwd=folder, env={**os.environ, **env}, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout


# --- Spark's other faces ---


@pytest.mark.spark
def test_views_over_topics(spark: SparkSession, topics: Topics) -> None:
    orders, totals = topics.create(), topics.create()
    fill(topics, orders)
    text = (EXAMPLES / "views.sql").read_text().replace(ADDRESS, topics.address)
    text = text.replace("'orders'", f"'{orders}'").replace("'totals'", f"'{totals}'")
    text = re.sub(r"^--.*$", "", text, flags=re.MULTILINE)
    *_, last = [spark.sql(each) for each in text.split(";") if each.strip()]
    assert [tuple(row) for row in last.collect()] == [("ada", 5, 600.0), ("bob", 5, 750.0)]
    written = [json.loads(value) for value in values(topics, totals)]
    assert {each["customer"]: each["amount"] for each in written} == TOTALS
    # A view keeps the offsets of its first query, as a frame does, until it is made anew.
    fill(topics, orders)
    assert spark.sql("SELECT count(*) FROM orders").collect()[0][0] == ORDERS + 1
    spark.sql(text.split(";")[0])
    assert spark.sql("SELECT count(*) FROM orders").collect()[0][0] == 2 * (ORDERS + 1)


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_stream_through_connect_has_a_name_and_a_lag(topics: Topics, tmp_path: Path) -> None:
    topic = topics.create()
    fill(topics, topic)
    script = str(EXAMPLES / "connect.py")
    said = run(sys.executable, script, "local[2]", topics.address, topic, str(tmp_path / "c"), folder=tmp_path)
    first, *batches = map(json.loads, said.splitlines())
    assert first == {"records": ORDERS + 1}
    assert {each["query"] for each in batches} == {f"copy-{topic}"}
    assert sum(each["rows"] for each in batches) == ORDERS + 1
    assert batches[-1]["maxOffsetsBehindLatest"] == "0"
    assert len(values(topics, f"{topic}-copy")) == ORDERS + 1


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_declarative_pipeline(topics: Topics, tmp_path: Path) -> None:
    topic = topics.create()
    fill(topics, topic)
    shutil.copytree(EXAMPLES / "declarative", tmp_path / "work")
    spec = tmp_path / "work" / "spark-pipeline.yml"
    script = tmp_path / "work" / "transformations" / "orders.py"
    script.write_text(script.read_text().replace('subscribe="orders"', f'subscribe="{topic}"'))
    text = spec.read_text().replace(ADDRESS, topics.address)
    spec.write_text(text.replace("/tmp/headrace-orders", str(tmp_path / "storage")))
    warehouse = tmp_path / "warehouse"
    settings = {"spark.ui.enabled": "false", "spark.sql.warehouse.dir": str(warehouse)}
    conf = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    run("spark-pipelines", "run", *conf, folder=spec.parent)
    parquet: Any = pytest.importorskip("pyarrow.parquet")
    totals = parquet.read_table(warehouse / "totals").to_pylist()
    assert {each["customer"]: each["amount"] for each in totals if each["customer"]} == TOTALS
    large = [json.loads(value)["id"] for value in values(topics, "large-orders")]
    assert sorted(large) == [number for number in range(ORDERS) if 30 * number >= 100]


# --- schedulers ---


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_day_that_is_submitted_again_gives_the_same(topics: Topics, tmp_path: Path) -> None:
    topic = topics.create()
    fill(topics, topic, NOON - DAY)
    fill(topics, topic)
    fill(topics, topic, NOON + DAY)
    job = [
        "spark-submit",
        "--master",
        "local[2]",
        "--conf",
        "spark.ui.enabled=false",
        str(EXAMPLES / "daily_totals.py"),
    ]
    flags = ["--bootstrap", topics.address, "--topic", topic, "--day", "2026-11-17", "--to", str(tmp_path / "totals")]
    parquet: Any = pytest.importorskip("pyarrow.parquet")
    for _ in range(2):
        summary = json.loads(run(*job, *flags, folder=tmp_path).splitlines()[-1])
        assert summary == {"day": "2026-11-17", "customers": 2, "to": f"{tmp_path}/totals/day=2026-11-17"}
        found = parquet.read_table(tmp_path / "totals").to_pylist()
        assert {each["customer"]: each["amount"] for each in found} == TOTALS


@pytest.mark.spark
def test_a_day_that_is_archived_again_adds_nothing(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    from headrace.pipeline.jobs import archive

    topic = topics.create()
    for time in (NOON - DAY, NOON, NOON + DAY):
        fill(topics, topic, time)
    day = {"startingTimestamp": str(NOON - DAY // 2), "endingTimestamp": str(NOON + DAY // 2)}
    wanted = {"to": tmp_path / "day", "topics": [topic], "bootstrap": topics.address, "options": day}
    assert [archive(spark, **wanted).rows for _ in range(2)] == [ORDERS + 1, 0]
    archived = spark.read.format("headrace").option("subscribe", topic).load(str(tmp_path / "day"))
    assert {row["offset"] for row in archived.collect()} == set(range(ORDERS + 1, 2 * (ORDERS + 1)))


def flags_of(command: str) -> set[str]:
    job: Any = typer.main.get_command(app)
    return {flag for each in job.commands[command].params for flag in each.opts}


def check_command(line: str) -> None:
    """Whether the flags of a `headrace pipeline` command are there."""
    words = shlex.split(re.sub(r"\{\{.*?\}\}", "x", line))
    assert words[:2] == ["headrace", "pipeline"]
    assert {word for word in words if word.startswith("--")} <= flags_of(words[2]), line


def test_the_dag_has_commands_that_there_are() -> None:
    """Airflow is not installed here: the file is compiled, and its commands are read from its syntax tree."""
    text = (EXAMPLES / "airflow_dag.py").read_text()
    tree = compile(text, "airflow_dag.py", "exec", ast.PyCF_ONLY_AST)
    names = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Constant)
    }
    keywords = [node for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg == "bash_command"]
    lines = [eval(compile(ast.Expression(node.value), "x", "eval"), {}, dict(names)) for node in keywords]
    assert len(lines) == 3
    for line in lines:
        if line.startswith("headrace"):
            check_command(line)
            assert "--since" in line
        else:
            assert line.startswith("spark-submit /opt/jobs/daily_totals.py --bootstrap ")
    assert "COPY examples/pipeline/daily_totals.py /opt/jobs/" in (EXAMPLES / "Dockerfile").read_text()


def test_the_image_copies_files_that_there_are() -> None:
    root = EXAMPLES.parents[1]
    text = (EXAMPLES / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    known = {"FROM", "RUN", "WORKDIR", "COPY", "ENV", "USER", "ENTRYPOINT"}
    assert {line.split()[0] for line in lines} <= known
    for line in lines:
        if line.startswith("COPY ") and "--from" not in line:
            *sources, _ = line.split()[1:]
            assert all((root / source).exists() for source in sources), line


def containers_in(resource: dict[str, Any]) -> list[dict[str, Any]]:
    spec = resource["spec"]
    template = spec.get("jobTemplate", {}).get("spec", spec).get("template")
    if template is None:
        return []
    volumes = {each["name"] for each in template["spec"]["volumes"]}
    containers: list[dict[str, Any]] = template["spec"]["containers"]
    assert all(mount["name"] in volumes for each in containers for mount in each["volumeMounts"])
    return containers


def test_the_pods_run_commands_that_there_are() -> None:
    yaml: Any = pytest.importorskip("yaml")
    resources = list(yaml.safe_load_all((EXAMPLES / "kubernetes.yaml").read_text()))
    assert [each["kind"] for each in resources] == ["PersistentVolumeClaim", "CronJob", "Deployment"]
    assert resources[2]["spec"]["selector"]["matchLabels"] == resources[2]["spec"]["template"]["metadata"]["labels"]
    (totals,), (archive,) = map(containers_in, resources[1:])
    check_command(shlex.join([*archive["command"], *archive["args"]]).removeprefix("tini -- "))
    (script,) = totals["args"]
    subprocess.run(["sh", "-n", "-c", script], check=True)
    assert re.fullmatch(r"exec spark-submit .*/opt/jobs/daily_totals\.py .*--day .* --to /srv/results/totals", script)


@pytest.mark.spark
def test_kubernetes_has_all_fields_of_the_pods(spark: SparkSession) -> None:
    """No server is asked: Spark brings the classes of Kubernetes' resources, and what they do not know is a slip."""
    yaml: Any = pytest.importorskip("yaml")
    assert spark._jvm is not None
    serialization = spark._jvm.io.fabric8.kubernetes.client.utils.Serialization
    for text in (EXAMPLES / "kubernetes.yaml").read_text().split("\n---\n"):
        check_fields(yaml.safe_load(text), serialization.unmarshal(text))


def check_fields(fields: dict[str, Any], resource: Any, path: str = "") -> None:
    """Whether the class of a resource has the fields, and so on below."""
    methods = {each.getName() for each in resource.getClass().getMethods()}
    if "getAdditionalProperties" not in methods or "getFormat" in methods:
        # Labels, and amounts.
        return
    for name, value in fields.items():
        getter = f"get{name[0].upper()}{name[1:]}"
        assert getter in methods, f"{path}.{name}"
        inner = getattr(resource, getter)()
        for each, below in zip(value, inner, strict=True) if isinstance(value, list) else [(value, inner)]:
            if isinstance(each, dict) and hasattr(below, "getClass"):
                check_fields(each, below, f"{path}.{name}")
