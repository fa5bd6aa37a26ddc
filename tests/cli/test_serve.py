from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from tests.serve_process import CLOSED
from tests.waiting import SECONDS

import headrace


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "headrace.cli", "serve", *map(str, arguments)]


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")} | CLOSED


@contextmanager
def serving(*arguments: str | Path, **variables: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    """A broker process and the addresses of its ready line."""
    process = subprocess.Popen(
        command(*arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**environment(), **variables},
    )
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        words = process.stdout.readline().split()
        assert words[:1] == ["ready"], process.stderr.read()
        yield process, dict(word.split("=") for word in words[1:])
    finally:
        process.kill()
        process.communicate(timeout=SECONDS)


def refused(*arguments: str | Path) -> str:
    """What a broker says that does not start."""
    done = subprocess.run(
        command(*arguments), capture_output=True, text=True, timeout=SECONDS, env=environment(), check=False
    )
    assert done.returncode == 1, done
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    return done.stderr


def ends(process: subprocess.Popen[str]) -> tuple[int, str]:
    """The exit code and the rest of standard error."""
    _, errors = process.communicate(timeout=SECONDS)
    return process.returncode, errors


def connects(address: str) -> bool:
    host, port = address.split(":")
    try:
        with socket.create_connection((host, int(port)), SECONDS):
            return True
    except ConnectionRefusedError:
        return False


def test_ready_means_that_every_door_accepts(tmp_path: Path):
    names = ["kafka", "http", "nsq", "nsq-http", "lookup", "lookup-http", "rocketmq", "rocketmq-namesrv"]
    names += ["rocketmq-grpc"]
    flags = [word for name in names for word in (f"--{name}", "127.0.0.1:0")]
    with serving("--data", tmp_path, *flags) as (process, doors):
        assert list(doors) == names
        assert all(map(connects, doors.values()))
        with urllib.request.urlopen(f"http://{doors['http']}/readyz", timeout=SECONDS) as answer:
            assert answer.status == 200
        process.send_signal(signal.SIGTERM)
        status, errors = ends(process)
        assert status == 0
        assert "Traceback" not in errors
        assert not any(map(connects, doors.values()))


def test_a_door_that_is_off_is_left_out(tmp_path: Path):
    with serving("--data", tmp_path, "--kafka", "127.0.0.1:0", "--http", "off") as (process, doors):
        assert list(doors) == ["kafka"]
        process.send_signal(signal.SIGINT)
        assert ends(process)[0] == 0


def test_file_environment_and_flags_together(tmp_path: Path):
    file = tmp_path / "headrace.toml"
    file.write_text(f'data = "{tmp_path}/data"\nkafka = "nonsense"\nhttp = "127.0.0.1:0"\n')
    with serving("--config", file, "--http", "off", HEADRACE_KAFKA="127.0.0.1:0") as (_, doors):
        assert list(doors) == ["kafka"]
        assert (tmp_path / "data").is_dir()


def test_a_clean_stop_leaves_a_directory_that_starts_again(tmp_path: Path):
    for _ in range(2):
        with serving("--data", tmp_path, "--kafka", "127.0.0.1:0", "--http", "off") as (process, _):
            process.send_signal(signal.SIGTERM)
            assert ends(process)[0] == 0


def test_a_second_broker_on_the_same_directory_is_refused(tmp_path: Path):
    with serving("--data", tmp_path, "--kafka", "127.0.0.1:0", "--http", "off") as (process, doors):
        errors = refused("--data", tmp_path, "--kafka", "127.0.0.1:0", "--http", "off", "--log-level", "error")
        assert f"the data directory {tmp_path} is in use by process {process.pid}" in errors
        assert len(errors.splitlines()) == 1
        assert connects(doors["kafka"])


@pytest.mark.parametrize("door", ["kafka", "http"])
def test_an_address_in_use_is_said(tmp_path: Path, door: str):
    other = "http" if door == "kafka" else "kafka"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        errors = refused("--data", tmp_path, f"--{door}", address, f"--{other}", "off", "--log-level", "error")
    assert f"the {door} door cannot listen on {address}: Address already in use; free that address" in errors
    assert len(errors.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--kafka", "nonsense"), "--kafka: 'nonsense' is not HOST:PORT"),
        (("--num-partitions", "0"), "--num-partitions: 0 is out of range"),
        (("--durability", "maybe"), "--durability: 'maybe' is not one of"),
        (("--config", "/nowhere/headrace.toml"), "/nowhere/headrace.toml cannot be read: No such file"),
        (("--tls-cert", "/nowhere/c.pem", "--tls-key", "/nowhere/k.pem"), "/nowhere/c.pem"),
        (("--data", "/proc/nowhere"), "the data directory /proc/nowhere cannot be made"),
        (("--data", "/etc/passwd"), "the data directory /etc/passwd is not a directory"),
    ],
)
def test_a_value_that_makes_no_sense_is_named(tmp_path: Path, arguments: tuple[str, ...], words: str):
    data = () if "--data" in arguments else ("--data", tmp_path)
    assert words in refused(*data, *arguments)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--xyzzyx", "1"), "there is no --xyzzyx; --help lists"),
        (("--kafak", "off"), "there is no --kafak (did you mean --kafka?)"),
        (("--log_level=debug",), "there is no --log_level (did you mean --log-level?)"),
        (("--kafka",), "--kafka: expected one argument"),
    ],
)
def test_a_wrong_flag_is_named_without_listing_all_others(flags: tuple[str, ...], words: str):
    done = subprocess.run(command(*flags), capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 2
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 2


def test_with_every_door_off_it_runs_and_says_so(tmp_path: Path):
    with serving("--data", tmp_path, "--kafka", "off", "--http", "off", "--log-format", "json") as (process, doors):
        assert doors == {}
        process.terminate()
        code, errors = ends(process)
    events = [json.loads(line) for line in errors.splitlines()]
    assert code == 0
    assert [each["event"].split(":")[0] for each in events] == ["every door is off", "ready", "stopping", "stopped"]
    assert events[1]["data"] == str(tmp_path)
    assert events[1]["version"] == headrace.__version__


def test_help_lists_every_setting():
    done = subprocess.run(command("--help"), capture_output=True, text=True, timeout=SECONDS, check=True)
    assert "--kafka HOST:PORT" in done.stdout
    assert "--durability sync|async|memory" in done.stdout
    kafka, http = done.stdout.index("\nKafka:\n"), done.stdout.index("\nHTTP:\n")
    assert kafka < done.stdout.index("\n  --kafka HOST:PORT") < http < done.stdout.index("\n  --http HOST:PORT")


def test_nobody_reads_its_log_and_it_works_and_stops_cleanly(tmp_path: Path):
    """A group's first member is one of the things that are logged."""
    reading, writing = os.pipe()
    process = subprocess.Popen(
        command("--data", tmp_path, "--kafka", "127.0.0.1:0", "--http", "off"),
        stdout=subprocess.PIPE,
        stderr=writing,
        text=True,
        env=environment(),
    )
    os.close(writing)
    try:
        assert process.stdout is not None
        kafka = process.stdout.readline().split()[1].removeprefix("kafka=")
        os.close(reading)
        producer = Producer({"bootstrap.servers": kafka})
        producer.produce("t", b"x")
        assert producer.flush(SECONDS) == 0
        consumer = Consumer({"bootstrap.servers": kafka, "group.id": "g", "auto.offset.reset": "earliest"})
        consumer.subscribe(["t"])
        message = consumer.poll(SECONDS)
        assert message is not None
        assert message.error() is None
        consumer.close()
        process.terminate()
        assert process.wait(SECONDS) == 0
    finally:
        process.kill()
        process.communicate(timeout=SECONDS)
    assert (tmp_path / "clean-shutdown").exists()


def test_a_ready_line_that_cannot_be_written_is_said(tmp_path: Path):
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            command("--data", tmp_path, "--kafka", "127.0.0.1:0", "--http", "off", "--log-level", "error"),
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=SECONDS,
            env=environment(),
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr.decode().splitlines() == [
        "headrace serve: the line `ready` cannot be written to standard output: No space left on device"
    ]
    assert (tmp_path / "clean-shutdown").exists()


def test_it_does_without_what_takes_long_to_import(tmp_path: Path):
    """The failure is the ready line: everything has been imported by then."""
    program = (
        "import sys; from headrace.cli.serve import serve\n"
        "sys.stdout = open('/dev/full', 'w')\n"
        "assert serve(sys.argv[1:]) == 1\n"
        "sys.stderr.write(' '.join(sys.modules)); sys.stderr.flush()\n"
        "import importlib.metadata, os; importlib.metadata.version('crc32c'); os._exit(0)"
    )
    doors = ("--kafka", "127.0.0.1:0", "--http", "127.0.0.1:0", "--nsq", "127.0.0.1:0", "--log-level", "error")
    done = subprocess.run(
        [sys.executable, "-c", program, "--data", str(tmp_path), *doors],
        stderr=subprocess.PIPE,
        text=True,
        timeout=SECONDS,
        env=environment(),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    loaded = set(done.stderr.split())
    assert {"headrace.doors.kafka", "headrace.doors.nsq.nsqd", "structlog", "crc32c"} <= loaded
    slow = {"email", "greenlet", "html", "hypothesis", "importlib.metadata", "prometheus_client", "rich", "typer"}
    assert not loaded & {*slow, "kio.index", "kio.schema.index", "kio.serial"}


@contextmanager
def hangups(handler: signal.Handlers) -> Iterator[None]:
    """What processes that are begun here make of SIGHUP; the tests themselves may run under `nohup`."""
    before = signal.signal(signal.SIGHUP, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_terminal_that_is_closed_stops_it_cleanly(tmp_path: Path):
    flags = ("--data", tmp_path, "--kafka", "127.0.0.1:0", "--http", "off")
    with hangups(signal.SIG_DFL), serving(*flags) as (process, _):
        process.send_signal(signal.SIGHUP)
        assert ends(process)[0] == 0
    assert (tmp_path / "clean-shutdown").exists()


def test_a_terminal_that_is_closed_does_not_stop_it_under_nohup(tmp_path: Path):
    flags = ("--data", tmp_path, "--kafka", "127.0.0.1:0", "--http", "off")
    with hangups(signal.SIG_IGN), serving(*flags) as (process, _):
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        # Had the first counted, the second would have ended it at once.
        assert ends(process)[0] == 0


def test_a_second_signal_ends_it_at_once(tmp_path: Path):
    script = (
        "import asyncio, sys; from headrace.server import Server; from headrace.cli.serve import serve\n"
        "async def stop(self): print('stopping', flush=True); await asyncio.Event().wait()\n"
        "Server.stop = stop\n"
        f"sys.exit(serve(['--data', {str(tmp_path)!r}, '--kafka', '127.0.0.1:0', '--http', 'off']))"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=environment()) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"ready")
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == b"stopping\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 128 + signal.SIGTERM
        process.stdout.close()


def test_sigterm_under_load_keeps_what_was_acknowledged_and_leaves_nothing_to_recover(tmp_path: Path):
    acknowledged: list[int] = []
    with serving("--data", tmp_path, "--kafka", "127.0.0.1:0", "--http", "off") as (process, doors):
        producer = Producer(
            {"bootstrap.servers": doors["kafka"], "enable.idempotence": True, "linger.ms": 0, "log_level": 0}
        )
        number = 0
        while len(acknowledged) < 5_000:
            while len(producer) < 500:
                value = str(number)
                producer.produce(
                    "t", value, on_delivery=lambda error, message: error or acknowledged.append(int(message.value()))
                )
                number += 1
            producer.poll(0.01)
        process.send_signal(signal.SIGTERM)
        status, errors = ends(process)
        producer.poll(0)
        producer.purge()
        producer.flush(SECONDS)
        assert status == 0, errors
        assert "Traceback" not in errors
    assert (tmp_path / "clean-shutdown").exists()
    with serving("--data", tmp_path, "--kafka", "127.0.0.1:0", "--http", "off") as (_, doors):
        consumer = Consumer({"bootstrap.servers": doors["kafka"], "group.id": "g", "auto.offset.reset": "earliest"})
        consumer.subscribe(["t"])
        found: list[int] = []
        while len(found) < len(acknowledged):
            message = consumer.poll(SECONDS)
            assert message is not None, f"{len(acknowledged) - len(found)} acknowledged messages are missing"
            found.append(int(message.value() or b""))
        consumer.close()
    assert found == list(range(len(found)))
    assert set(acknowledged) <= set(found)


def test_a_flag_alone_switches_on(tmp_path: Path):
    addresses = ("--http", "0.0.0.0:0")
    assert "set insecure: --insecure" in refused("--data", tmp_path, *addresses)
    with serving("--data", tmp_path, "--insecure", *addresses) as (_, found):
        assert found["http"].startswith("0.0.0.0:")
