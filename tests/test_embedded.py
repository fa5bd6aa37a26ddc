from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.waiting import SECONDS

import headrace
from headrace.errors import ConfigError, DataDirectoryLocked, DoorClosed, HeadraceError


def connects(address: str) -> bool:
    host, port = address.split(":")
    try:
        with socket.create_connection((host, int(port)), 5):
            return True
    except ConnectionRefusedError:
        return False


def test_a_broker_for_the_length_of_a_with():
    with headrace.Broker() as broker:
        address, data = broker.kafka, broker.data
        assert connects(address)
        assert os.path.isdir(data)
    assert not connects(address)
    assert not os.path.exists(data)


def test_a_directory_of_ones_own_is_kept(tmp_path: Path):
    with headrace.Broker(data=tmp_path / "queue") as broker:
        assert broker.data == str(tmp_path / "queue")
    assert (tmp_path / "queue").is_dir()
    with headrace.Broker(data=tmp_path / "queue"):
        pass


def test_a_directory_stays_the_same_when_the_host_goes_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    broker = headrace.Broker(data="./queue")
    monkeypatch.chdir(tmp_path / "elsewhere")
    with broker:
        assert broker.data == str(tmp_path / "queue")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["elsewhere", "queue"]
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_stopped_broker_starts_again():
    broker = headrace.Broker()
    for _ in range(2):
        broker.start()
        assert connects(broker.kafka)
        broker.stop()
    broker.stop()


def test_several_in_one_process():
    with headrace.Broker() as one, headrace.Broker() as two:
        assert one.kafka != two.kafka
        assert connects(one.kafka)
        assert connects(two.kafka)


async def test_inside_a_running_loop():
    loop = asyncio.get_running_loop()
    policy = asyncio.get_event_loop_policy()
    async with headrace.Broker(http="127.0.0.1:0") as broker:
        reader, writer = await asyncio.open_connection(*broker.http.split(":"))
        writer.write(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 200")
        writer.close()
    assert asyncio.get_running_loop() is loop
    assert asyncio.get_event_loop_policy() is policy


def test_metrics_of_an_embedded_broker():
    with (
        headrace.Broker(http="127.0.0.1:0") as broker,
        urllib.request.urlopen(f"http://{broker.http}/metrics", timeout=SECONDS) as answer,
    ):
        assert b"# TYPE headrace_" in answer.read()


def test_why_it_did_not_start_reaches_the_caller(tmp_path: Path):
    with headrace.Broker(data=tmp_path):
        second = headrace.Broker(data=tmp_path)
        with pytest.raises(DataDirectoryLocked, match="is in use"):
            second.start()
        second.stop()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        broker = headrace.Broker(kafka=f"127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(DoorClosed, match="the kafka door cannot listen"):
            broker.start()


def test_wrong_settings_fail_where_they_stand():
    with pytest.raises(ConfigError, match="durability: 'maybe'"):
        headrace.Broker(durability="maybe")
    with pytest.raises(ConfigError, match=r"there is no setting 'node' \(did you mean node_id\?\)"):
        headrace.Broker(node=1)
    with pytest.raises(ConfigError, match="data: the empty text names no directory"):
        headrace.Broker(data="")


def test_addresses_are_there_while_it_runs():
    broker = headrace.Broker(http="off")
    with pytest.raises(HeadraceError, match="does not run"):
        _ = broker.kafka
    with broker, pytest.raises(HeadraceError, match="the http door is off"):
        _ = broker.http


def test_a_forked_child_does_not_stop_its_parents_broker():
    with headrace.Broker() as broker:
        child = os.fork()
        if child == 0:
            broker.stop()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert connects(broker.kafka)


def test_a_forked_child_does_not_hold_its_parents_directory(tmp_path: Path):
    with headrace.Broker(data=tmp_path):
        child = os.fork()
        if child == 0:
            signal.pause()
    try:
        with headrace.Broker(data=tmp_path) as again:
            assert again.kafka
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


async def test_a_start_that_is_cancelled_leaves_nothing_running(tmp_path: Path):
    async def host() -> None:
        async with headrace.Broker(data=tmp_path):
            await asyncio.Event().wait()

    hosting = asyncio.create_task(host())
    await asyncio.sleep(0)
    hosting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hosting
    async with headrace.Broker(data=tmp_path) as again:
        assert again.kafka


def test_a_start_that_is_interrupted_leaves_nothing_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    class Interrupted(threading.Event):
        waited = False

        def wait(self, timeout: float | None = None) -> bool:
            if not self.waited:
                self.waited = True
                raise KeyboardInterrupt
            return super().wait(timeout)

    with monkeypatch.context() as patch:
        patch.setattr("headrace.embedded.threading", SimpleNamespace(Event=Interrupted, Thread=threading.Thread))
        with pytest.raises(KeyboardInterrupt):
            headrace.Broker(data=tmp_path).start()
    with headrace.Broker(data=tmp_path) as again:
        assert again.kafka


def test_a_host_that_forgets_to_stop_still_ends():
    script = "import headrace; headrace.Broker().start(); print('started')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=SECONDS, check=False)
    assert (done.returncode, done.stdout) == (0, "started\n"), done.stderr


def test_nothing_is_written_to_the_hosts_output():
    script = "import headrace\nwith headrace.Broker(): pass"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=SECONDS, check=True)
    assert (done.stdout, done.stderr) == ("", "")


def test_log_lines_go_to_the_hosts_logging():
    """In a process of its own: here, tests before this one may have told structlog where lines go."""
    script = (
        "import logging, sys, headrace\n"
        "logging.basicConfig(level='INFO', stream=sys.stdout, format='%(levelname)s %(message)s')\n"
        "with headrace.Broker() as broker:\n"
        "    print(f'INFO ready version={headrace.__version__} data={broker.data} '\n"
        "          f'http={broker.http} kafka={broker.kafka} nsq={broker.nsq}')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    *said, expected = [line for line in done.stdout.splitlines() if line.startswith("INFO ready ")]
    assert said == [expected]


def test_importing_the_package_loads_no_broker():
    script = "import sys, headrace; print('asyncio' in sys.modules, headrace.__version__)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=SECONDS, check=True)
    assert done.stdout.startswith("False ")


def test_a_broker_inside_of_a_program_belongs_to_no_group() -> None:
    with pytest.raises(ConfigError, match="cluster: a broker inside of a program runs alone"):
        headrace.Broker(cluster="etcd://127.0.0.1:2379/main", peer="127.0.0.1:0")
