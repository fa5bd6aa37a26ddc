"""`headrace pipeline`: flags and files of settings, without Spark."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Event

import pytest
from typer import Typer
from typer.testing import CliRunner

from headrace.cli import pipeline
from headrace.cli.app import tree
from headrace.cli.pipeline import preflight
from headrace.cli.pipeline.display import Display
from headrace.cli.pipeline.failures import JobFailed, explain_errors, explanation
from headrace.cli.pipeline.job import Job, job
from headrace.cli.pipeline.settings import merge_file, parse_size
from headrace.client import Client
from headrace.embedded import Broker
from headrace.errors import HeadraceError

URL = "s3://bucket/x"
FLAGS = {"to": "", "topics": "", "file_size": "", "every": "", "option": [], "conf": []}


def test_flags_win_over_the_file_and_lists_are_joined(tmp_path: Path) -> None:
    path = tmp_path / "jobs.toml"
    path.write_text(
        '[archive]\nto = "/a"\ntopics = ["x", "y"]\nfile-size = "64m"\n[archive.option]\nfailOnDataLoss = false\n'
        '[archive.conf]\n"spark.executor.memory" = "1g"\n'
    )
    given = {**FLAGS, "to": "/b", "option": ["failOnDataLoss=true"]}
    assert merge_file(given, str(path), "archive") == {
        "to": "/b",
        "topics": "x,y",
        "file_size": "64m",
        "every": "",
        "option": ["failOnDataLoss=false", "failOnDataLoss=true"],
        "conf": ["spark.executor.memory=1g"],
    }
    assert merge_file(given, "", "archive") == given
    path.write_text('[archive]\ntopics = [1, "y"]\noption = "timeout=5"\nconf = ["a=1", "b=2"]\n')
    found = merge_file(FLAGS, str(path), "archive")
    assert (found["topics"], found["option"], found["conf"]) == ("1,y", ["timeout=5"], ["a=1", "b=2"])
    # As Spark's own files have them: to TOML, such names are tables in tables.
    path.write_text('[archive.conf]\nspark.driver.memory = "2g"\nspark.driver.cores = 2\nspark.speculation = true\n')
    assert merge_file(FLAGS, str(path), "archive")["conf"] == [
        "spark.driver.memory=2g",
        "spark.driver.cores=2",
        "spark.speculation=true",
    ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('[archive]\ntopic = "x"\n', "has no setting 'topic'"),
        ("[archive\n", "cannot be used as settings"),
        ('[archives]\nto = "x"\n[audit]\n', r"has no table \[archive\]; it has \[archives\], \[audit\]"),
        ("archive = 1\n", r"has no table \[archive\]"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "jobs.toml"
    path.write_text(text)
    with pytest.raises(HeadraceError, match=reason):
        merge_file(FLAGS, str(path), "archive")
    with pytest.raises(HeadraceError, match="cannot be used as settings"):
        merge_file(FLAGS, str(tmp_path / "nowhere"), "archive")


def test_sizes() -> None:
    assert [parse_size(text) for text in ("7", "64k", "128M", "1g")] == [7, 65_536, 134_217_728, 1 << 30]
    for text in ("", "k", "1t", "1kk", "-1", "0", "1.5m"):
        with pytest.raises(HeadraceError, match="is not a size"):
            parse_size(text)


def test_a_command_gets_its_own_flags_and_the_job_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[Job, str, bool]] = []

    @job
    def shout(job: Job, words: str = "", loud: bool = False) -> None:
        told.append((job, words, loud))

    app = Typer()
    app.command()(shout)
    path = tmp_path / "jobs.toml"
    path.write_text('[shout]\nwords = "hey"\nloud = true\ntopics = ["a", "b"]\nmaster = "local[2]"\n')
    monkeypatch.setenv("HEADRACE_BOOTSTRAP", "host:1")
    ran = CliRunner().invoke(app, ["--config", str(path), "--data", "/d", "--conf", "x=y"], catch_exceptions=False)
    assert ran.exit_code == 0
    source = {"topics": ["a", "b"], "pattern": "", "bootstrap": "", "data": "/d", "options": {}}
    assert told == [(Job("shout", "host:1", source, "local[2]", {"x": "y"}), "hey", True)]
    backfill = ["--topics", "a", "--since", "@5", "--until", "@9", "--option", "timeout=3", "--json"]
    assert CliRunner().invoke(app, backfill, catch_exceptions=False).exit_code == 0
    assert told[1][0].source["options"] == {"timeout": "3", "startingTimestamp": "5", "endingTimestamp": "9"}
    assert told[1][0].as_json
    path.write_text('[shout]\nloud = "yes"\n')
    with pytest.raises(HeadraceError, match=r"'loud'.*true or false"):
        CliRunner().invoke(app, ["--config", str(path)], catch_exceptions=False)


def test_what_is_missing_is_said_before_spark_is_started(
    headrace_broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyarrow")
    pytest.importorskip("pyspark")
    monkeypatch.setattr("headrace.pipeline.session.session", lambda *_: pytest.fail("Spark was started"))
    monkeypatch.setattr("headrace.logs.log_like_a_server", lambda *_: None)
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.touch()

    def fails(*arguments: str, java: str = str(tmp_path), to: tuple[str, ...] = ("--to", str(tmp_path / "to"))) -> str:
        monkeypatch.setenv("JAVA_HOME", java)
        with pytest.raises(HeadraceError) as failed:
            CliRunner().invoke(pipeline.app, [*arguments, *to], catch_exceptions=False)
        return str(failed.value)

    there = ("--bootstrap", headrace_broker.kafka)
    assert "--topics or --pattern is missing" in fails("archive", *there)
    assert "exclude each other" in fails("archive", *there, "--topics", "x", "--pattern", "y")
    assert "there is no topic 'nowhere'" in fails("archive", *there, "--topics", "nowhere")
    with monkeypatch.context() as patched:
        patched.setattr("headrace.pipeline.read_plan.find_partitions", lambda *_: pytest.fail("it was waited for"))
        assert "cannot reach 127.0.0.1:1: " in fails("logs", "--bootstrap", "127.0.0.1:1", "--topics", "x")
    assert "is not a broker's data directory" in fails("replay", "--data", str(tmp_path), "--topics", "x")
    assert "has no bin/java" in fails("archive", *there, "--topics", "x", java=str(tmp_path / "nowhere"))
    # What gets the results is looked at, too.
    checkpoint = ("--checkpoint", str(tmp_path / "checkpoint"))
    into = fails("replay", *there, "--pattern", "x", "--into", "y", "--into-bootstrap", "127.0.0.1:1", to=())
    assert "cannot reach 127.0.0.1:1: " in into
    refused = fails("sessions", *there, "--topics", "x", "--unasked", "no", *checkpoint)
    assert "--unasked must be follow or aside" in refused
    # Jobs read what they need of a record, and would not heed what is said of it.
    for name, more in (("archive", ()), ("logs", ()), ("sessions", checkpoint), ("replay", ())):
        for option in ("columns=value", "valueformat=json"):
            to = ("--to", "questions" if name == "sessions" else str(tmp_path / "to"))
            said = fails(name, *there, "--topics", "nowhere", "--option", option, *more, to=to)
            assert f"the option {option.partition('=')[0]} is for queries" in said
    plan = ("--function", "json:dumps", "--option", "columns=value")
    assert "there is no topic 'nowhere'" in fails("replay", *there, "--topics", "nowhere", *plan)
    assert "is for queries" in fails("replay", *there, "--topics", "nowhere", *plan, "--per", "rows")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("archive", "--to", "x", "--table", "csv"), "a table cannot be 'csv'"),
        (("archive", "--to", "x", "--every", "0"), "cannot look every 0 seconds"),
        (("logs", "--to", "x", "--every", "0"), "cannot look every 0 seconds"),
        (("logs", "--to", "x", "--format", "xml"), "the format cannot be 'xml'"),
        (("logs", "--to", "x", "--format", "regex", "--regex", "("), "the regular expression"),
        (("logs", "--to", "x", "--field", "when=ts"), "'when' is not one of time"),
        (("logs", "--to", "x", "--duration-unit", "years"), "the unit of durations cannot be 'years'"),
        (("logs", "--to", "x", "--window", "0"), "windows of 0.0 s"),
        (("logs", "--to", "x", "--plot", "x.bmpx"), "its name ends in one of .*png"),
        (("logs", "--to", "x", "--plot", "nowhere/x.png"), "there is no such folder"),
        (("replay",), "into .a topic. or to .a folder. says where records go. Give one of them .got none."),
        (("replay", "--into", "y", "--per", "cell"), "per must be one of frame, batches, pandas, rows .got 'cell'"),
        (("replay", "--into", "y", "--function", "nowhere:f"), "the function 'nowhere:f' cannot be had"),
        (("replay", "--to", "y", "--speed", "2"), "a speed is for a topic"),
        (("sessions", "--to", "q"), "--checkpoint is missing. Give the folder"),
        (("sessions", "--to", "q", "--checkpoint", "c", "--every", "0s"), "cannot look every 0 seconds"),
        (("sessions", "--to", "q", "--checkpoint", "c", "--idle", "2d", "--forget", "1d"), "before it is idle"),
        (("archive", "--to", "x", "--since", "yesterday"), "'yesterday' is not a position"),
        (("archive", "--to", "x", "--until", "-1h", "--every", "5m"), "--until and --every exclude each other"),
        (("logs", "--to", "x", "--since", "2026-01-02", "--until", "2026-01-01"), "--since must be before --until"),
        (("logs", "--to", "x", "--every", "5s", "--option", "endingOffsets=latest"), "a stream has no end"),
        (("audit", "--judge", "luck"), "'luck' cannot be judged"),
        (("audit", "--max-loss", "some"), "some"),
        (("audit", "--since", "12"), "'12' is not a time"),
        (
            ("audit", "--since", "2026-01-31T12:00:10", "--until", "2026-01-31T12:00:50"),
            "there is no whole minute from 20",
        ),
        (("audit", "--option", "columns=value"), "the option columns is chosen by the audit"),
        (("audit", "--share", "q=2"), "the queue 'q' cannot watch a share of 2.0"),
        (("audit", "--parquet", f"{__file__}/x"), "is a file. Give another folder"),
        (("archive", "--to", __file__), "is a file. Give another folder"),
        (("archive", "--to", str(Path(__file__).parent)), "is not empty and no archive"),
        (("logs", "--to", str(Path(__file__).parent)), "is not empty and no archive"),
        (("logs", "--to", "x", "--into", "a topic"), "a topic cannot be called 'a topic'"),
        (("replay", "--to", str(Path(__file__).parent)), "is not empty and no archive"),
        (("replay", "--into", "a/b"), "a topic cannot be called 'a/b'"),
        (("replay", "--into", "y", "--function", ".x:f"), "the function '.x:f' cannot be had"),
        (("replay", "--into", "y", "--option", "kafka.group.id=g"), "a replay moves no consumer group"),
        (("sessions", "--to", "a b", "--checkpoint", "c"), "a topic cannot be called 'a b.events'"),
        (("sessions", "--to", "q", "--checkpoint", __file__), "is a file. Give another folder"),
        (("sessions", "--to", "q", "--checkpoint", str(Path(__file__).parent)), "is not a checkpoint of `sessions`"),
        (
            ("sessions", "--to", "q", "--checkpoint", "c", "--every", "5s", "--option", "endingOffsets=latest"),
            "a stream has no end",
        ),
    ],
)
def test_flags_are_looked_at_before_anything_else(
    arguments: tuple[str, ...], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("pyarrow", "pyspark", "matplotlib"):
        pytest.importorskip(package)
    monkeypatch.setattr("headrace.logs.log_like_a_server", lambda *_: None)
    monkeypatch.setattr(preflight, "check", lambda *_, **__: pytest.fail("the broker was asked"))
    ran = CliRunner().invoke(pipeline.app, [*arguments, "--topics", "x"])
    # An error of the audit is said by the audit.
    said = ran.stderr if arguments[0] == "audit" else str(ran.exception)
    assert re.search(reason, said), said


@pytest.mark.parametrize(
    "arguments",
    [
        ("archive", "--to", "x", "--data", URL),
        ("archive", "--config", URL),
        ("archive", "--to", "x", "--option", f"kafka.ssl.truststore.location={URL}"),
        ("logs", "--to", URL),
        ("logs", "--to", "x", "--plot", f"{URL}.png"),
        ("logs", "--to", "x", "--data", URL),
        ("replay", "--to", URL),
        ("replay", "--to", "x", "--data", URL),
        ("sessions", "--to", "q", "--checkpoint", URL),
        ("sessions", "--to", "q", "--checkpoint", "c", "--data", URL),
        ("audit", "--parquet", URL),
        ("audit", "--data", URL),
    ],
)
def test_a_place_that_cannot_be_served_is_refused_before_anything_is_read_or_made(
    arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("pyarrow", "pyspark", "matplotlib"):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("headrace.logs.log_like_a_server", lambda *_: None)
    monkeypatch.setattr("headrace.pipeline.session.session", lambda *_: pytest.fail("Spark was started"))
    monkeypatch.setattr(preflight, "check_java", lambda *_: None)
    ran = CliRunner().invoke(pipeline.app, [*arguments, "--topics", "x", "--bootstrap", "127.0.0.1:1"])
    said = ran.stderr if arguments[0] == "audit" else str(ran.exception)
    assert re.search("URLs with s3: are not supported. Give a path, or file:///PATH", said), said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--to", "ftp://host/x"), "URLs with ftp: are not supported"),
        (("--to", URL), "cannot be a folder of Parquet files"),
        (("--to", URL, "--table", "delta"), "needs a checkpoint of its own"),
        (("--to", URL, "--table", "iceberg", "--checkpoint", "c"), "needs a catalogue"),
        (("--to", "x", "--table", "delta", "--catalog", "c"), "give table=iceberg"),
        (("--to", "x", "--partition-by", "colour"), "the rows have none of that name"),
    ],
)
def test_a_table_that_cannot_be_written_is_refused_before_anything_is_read_or_made(
    arguments: tuple[str, ...], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("pyspark", "deltalake", "pyiceberg"):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("headrace.logs.log_like_a_server", lambda *_: None)
    monkeypatch.setattr(preflight, "check", lambda *_, **__: pytest.fail("the broker was asked"))
    ran = CliRunner().invoke(pipeline.app, ["archive", *arguments, "--topics", "x"])
    assert re.search(reason, str(ran.exception)), ran.exception
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("job", ["logs", "replay"])
def test_a_file_url_is_the_folder_that_it_names(
    job: str, headrace_broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyarrow")
    pytest.importorskip("pyspark")

    async def send() -> None:
        async with Client(headrace_broker.kafka) as client, client.producer() as producer:
            await producer.send("events", b"level=info service=a msg=hello")

    asyncio.run(send())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("headrace.logs.log_like_a_server", lambda *_: None)
    monkeypatch.setattr("headrace.pipeline.session.session", lambda *_: None)
    monkeypatch.setattr("headrace.cli.pipeline.job.stop_on_signals", Event)
    monkeypatch.setattr(preflight, "check_java", lambda *_: None)
    monkeypatch.setattr("headrace.pipeline.jobs.rounds.on_spark", lambda _, work, tasks: [work(each) for each in tasks])
    from tests.pipeline.jobs.log_batches import HereJob

    monkeypatch.setattr(sys.modules["headrace.pipeline.jobs.logs.job"], "LogJob", HereJob)
    folder = tmp_path / "out 100%"
    ran = CliRunner().invoke(
        pipeline.app, [job, "--topics", "events", "--bootstrap", headrace_broker.kafka, "--to", folder.as_uri()]
    )
    assert ran.exit_code == 0, ran.exception
    assert [each.name for each in tmp_path.iterdir()] == ["out 100%"]
    assert list(folder.rglob("*.parquet"))


def test_a_replay_that_fails_says_how_it_is_gone_on_with(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow")
    pytest.importorskip("pyspark")
    from headrace.pipeline.jobs import Replayed

    def failing(_: object, *, progress: Callable[[Replayed], None], **__: object) -> None:
        progress(Replayed(10, 10, 1, 2, 10, "replay-4f2a"))
        raise HeadraceError("the broker is gone")

    monkeypatch.setattr("headrace.logs.log_like_a_server", lambda *_: None)
    monkeypatch.setattr("headrace.pipeline.session.session", lambda *_: None)
    monkeypatch.setattr("headrace.pipeline.jobs.replay", failing)
    monkeypatch.setattr("headrace.cli.pipeline.job.stop_on_signals", Event)
    monkeypatch.setattr(preflight, "check", lambda *_, **__: None)
    for flags, said in ((("--into", "y"), True), (("--into", "y", "--speed", "2"), False), (("--to", "y"), False)):
        ran = CliRunner().invoke(pipeline.app, ["replay", "--topics", "x", *flags])
        assert str(ran.exception) == "the broker is gone"
        assert ("--application replay-4f2a continues" in ran.stderr) == said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_spark_starts_is_heeded_when_it_has(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PySpark leaves a Java behind where it is interrupted."""
    pytest.importorskip("pyarrow")
    pytest.importorskip("pyspark")
    from headrace.pipeline.jobs import Archived

    done: list[str] = []

    class Spark:
        def stop(self) -> None:
            done.append("stopped")

    def starting(*_: object) -> Spark:
        signal.raise_signal(number)
        done.append("started")
        return Spark()

    def run(_: object, *, stop: Event, **__: object) -> Archived:
        done.append(f"told to end: {stop.is_set()}")
        return Archived(0, 0, 0, 0, {}, 0)

    monkeypatch.setattr("headrace.logs.log_like_a_server", lambda *_: None)
    monkeypatch.setattr("headrace.pipeline.session.session", starting)
    monkeypatch.setattr("headrace.pipeline.jobs.archive", run)
    monkeypatch.setattr("headrace.cli.pipeline.job.stop_on_signals", Event)
    monkeypatch.setattr(preflight, "check", lambda *_, **__: None)
    before = signal.getsignal(number)
    ran = CliRunner().invoke(pipeline.app, ["archive", "--topics", "x", "--to", "y"], catch_exceptions=False)
    assert (ran.exit_code, done) == (0, ["started", "told to end: True", "stopped"])
    # One that cannot be ended in the midst does not begin.
    done.clear()
    ran = CliRunner().invoke(pipeline.app, ["audit", "--topics", "x"])
    assert (ran.exit_code, done) == (128 + number, ["started", "stopped"])

    def failing(*_: object) -> Spark:
        signal.raise_signal(number)
        raise HeadraceError("Spark does not start")

    monkeypatch.setattr("headrace.pipeline.session.session", failing)
    assert CliRunner().invoke(pipeline.app, ["archive", "--topics", "x", "--to", "y"]).exit_code == 128 + number
    assert signal.getsignal(number) is before


def test_what_stands_in_brackets_is_in_the_help() -> None:
    assert "headrace[pipeline]" in CliRunner().invoke(tree(["pipeline"]), ["pipeline", "--help"]).stdout


def test_an_error_of_the_audit_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow")
    pytest.importorskip("pyspark")
    monkeypatch.setattr("headrace.logs.log_like_a_server", lambda *_: None)
    arguments = ["audit", "--topics", "x", "--bootstrap", "127.0.0.1:1"]
    ran = CliRunner().invoke(pipeline.app, arguments)
    assert (ran.exit_code, "cannot reach 127.0.0.1:1: " in ran.stderr) == (2, True)
    for raised, code in ((RuntimeError("a bug"), 2), (KeyboardInterrupt(), 130)):

        def fail(*_: object, raised: BaseException = raised, **more: object) -> None:
            raise raised

        monkeypatch.setattr(preflight, "check", fail)
        assert CliRunner().invoke(pipeline.app, arguments).exit_code == code


def test_a_missing_package_or_java_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(HeadraceError, match="there is no java in PATH"):
        preflight.check_java("local[2]")
    # A server elsewhere has its own.
    preflight.check_java("sc://host")
    monkeypatch.setitem(sys.modules, "pyspark", None)
    monkeypatch.setattr("headrace.logs.log_like_a_server", lambda *_: None)
    for flags in (("archive",), ("logs", "--field", "time=ts"), ("replay", "--function", "json:dumps")):
        with pytest.raises(HeadraceError, match=r"pip install 'headrace\[pipeline\]'"):
            CliRunner().invoke(pipeline.app, [*flags, "--topics", "x", "--to", "x"], catch_exceptions=False)


def test_a_master_that_is_away_is_not_waited_for() -> None:
    pytest.importorskip("pyspark")
    for master in ("local", "local[*]", "yarn", "k8s://https://host:1", "sc://host:1"):
        preflight.check_master(master)
    with pytest.raises(HeadraceError, match=r"--master must be .* \(got 'localhost:7077'\)"):
        preflight.check_master("localhost:7077")
    for master in ("local[x]", "local[0]", "local[]", "local-cluster[1]", "nowhere"):
        with pytest.raises(HeadraceError, match="--master must be"):
            preflight.check_master(master)
    for master in ("local[2]", "local[4,2]", "local[*, 2]", "local-cluster[1,2,1024]"):
        preflight.check_master(master)
    for master in ("spark://127.0.0.1:1", "spark://127.0.0.1", "spark://127.0.0.1:99999999"):
        with pytest.raises(HeadraceError, match=f"no Spark master answers at {master}"):
            preflight.check_master(master)
    with socket.create_server(("127.0.0.1", 0)) as server:
        preflight.check_master(f"spark://127.0.0.1:1,127.0.0.1:{server.getsockname()[1]}")


def test_errors_that_people_can_help_are_said_in_a_line(tmp_path: Path) -> None:
    with pytest.raises(JobFailed, match=r"nowhere/x cannot be used: No such file or directory"), explain_errors():
        (tmp_path / "nowhere" / "x").mkdir()
    with pytest.raises(HeadraceError, match="as it is"), explain_errors():
        raise HeadraceError("as it is")
    with pytest.raises(ZeroDivisionError), explain_errors():
        _ = 1 // 0

    class FromSpark(Exception):
        """As Spark hands on what a worker has raised."""

    FromSpark.__module__ = "pyspark.errors.exceptions.captured"
    whole = (
        "[STREAM_FAILED] Query [id = 1] terminated with exception: Job aborted\n"
        'Traceback (most recent call last):\n  File "x.py", line 1, in partitions\n'
        "headrace.pipeline.origin.DataLost: orders-0: retention was faster\n\n"
        "\tat org.apache.spark.api.python.PythonException.raise(x.scala:1)\n"
    )
    assert explanation(FromSpark(whole)) == "orders-0: retention was faster"
    assert explanation(FromSpark("Job aborted\nValueError: no error of ours")) is None
    # Told to end, it is no riddle.
    stop = Event()
    with pytest.raises(FromSpark), explain_errors(stop):
        raise FromSpark("An error occurred while calling o1.x")
    stop.set()
    with pytest.raises(JobFailed, match="Spark ended together with the job"), explain_errors(stop):
        raise FromSpark("An error occurred while calling o1.x")
    with pytest.raises(ZeroDivisionError), explain_errors(stop):
        _ = 1 // 0
    # Others may cite it.
    assert explanation(ValueError(whole)) is None
    assert "Spark has ended" in (explanation(ConnectionRefusedError(111, "refused")) or "")


def test_progress_is_said_when_it_is_new(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("headrace.cli.pipeline.display.time.monotonic", lambda: now[0])
    with Display("audit") as display:
        for at, rows, words in ((1, 0, "looking"), (11, 0, "reading"), (12, 0, "counting"), (25, 0, "counting"),
                                (40, 0, "counting"), (60, 600, "done")):  # fmt: skip
            now[0] = at
            display.show(rows, words)
    assert capsys.readouterr().err.splitlines() == ["audit: reading", "audit: counting", "audit: done, 10 rows/s"]
