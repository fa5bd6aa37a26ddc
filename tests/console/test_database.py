"""The console's files through what happens to files: a kill, a full disk, damage, another version."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pytest
from tests.captured_logs import capture_logs

from headrace.console.alerts import store
from headrace.console.alerts.state import Alert
from headrace.console.alerts.store import AlertEvent, AlertFile, AlertStore
from headrace.console.database import ASIDE
from headrace.console.figures import history
from headrace.console.figures.history import History, HistoryFile, Sample

NOW = 1_795_000_000

WRITES = """
import sys
from headrace.console.figures.history import HistoryFile, Sample
file = HistoryFile(sys.argv[1])
at = 1_795_000_000
while True:
    file.write(10, at, [Sample("b", "node", "", {"lag": float(at % 1000)})] + [
        Sample("b", "topics", f"t{n}", {"bytes": float(at)}) for n in range(200)])
    print(at, flush=True)
    at += 10
"""


def node(value: float) -> list[Sample]:
    return [Sample("b", "node", "", {"lag": value, "messages_in_rate": 0.0})]


def words_of(lines: list[MutableMapping[str, Any]]) -> str:
    return "\n".join(str(line) for line in lines)


def known(file: HistoryFile, until: int) -> int:
    points = file.read("b", "node", "", "lag", NOW, until)
    return sum(value is not None for _, value in points)


def test_a_kill_loses_nothing_that_was_written(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    for _ in range(3):
        writer = subprocess.Popen([sys.executable, "-c", WRITES, str(path)], stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        last = [int(writer.stdout.readline()) for _ in range(20)][-1]
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
        file = HistoryFile(path)
        assert known(file, last + 10) >= 20
        file.close()
        assert not path.with_name(path.name + ASIDE).exists()


def _damage(path: Path) -> None:
    path.write_bytes(b"no database, but long enough to be taken for one" * 100)


def _damage_inside(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[2_000:] = b"\xa5" * (len(content) - 2_000)
    path.write_bytes(bytes(content))


def _other_version(path: Path) -> None:
    with sqlite3.connect(path) as made:
        made.execute("PRAGMA user_version=7")
    made.close()


@pytest.mark.parametrize("harm", [_damage, _damage_inside, _other_version])
async def test_a_file_that_cannot_be_used_is_set_aside_with_words(tmp_path: Path, harm: Any) -> None:
    path = tmp_path / "history.db"
    file = HistoryFile(path)
    for at in range(NOW, NOW + 1_000, 10):
        file.write(10, at, node(1.0) + [Sample("b", "topics", f"t{n}", {"bytes": 1.0}) for n in range(50)])
    file.close()
    harm(path)
    opened = History(path)
    with capture_logs() as lines:
        await opened.open()
        for at in range(NOW, NOW + 60, 10):
            await opened.record(at, node(2.0))
    points = await opened.read("b", "node", "", "lag", NOW, NOW + 50)
    assert [value for _, value in points][-1] == 2.0, "it goes on"
    await opened.close()
    assert path.with_name(path.name + ASIDE).exists(), "nothing is deleted"
    assert "begins anew" in words_of(lines) or harm is _damage_inside


@pytest.mark.parametrize("harm", [_damage, _other_version])
async def test_what_was_told_of_alerts_begins_anew(tmp_path: Path, harm: Any) -> None:
    path = tmp_path / "alerts.db"
    AlertFile(path).close()
    harm(path)
    opened = AlertStore(path)
    await opened.open()
    assert await opened.load("b") == ({}, {})
    await opened.close()


async def test_without_room_figures_are_lost_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    opened = History(path)
    await opened.open()
    file = opened._file
    assert file is not None
    await opened.record(NOW, node(1.0))
    pages = file._db.execute("PRAGMA page_count").fetchone()[0]
    # As SQLite does where the disk is full.
    file._db.execute(f"PRAGMA max_page_count={pages}")
    with capture_logs() as lines:
        for turn in range(1, 12):
            await opened.record(
                NOW + 10 * turn, [Sample("b", "topics", f"t{turn}-{n}", {"bytes": 1.0}) for n in range(500)]
            )
    words = words_of(lines)
    assert "Free some room" in words
    assert 1 <= words.count("Free some room") <= 2, "said once a minute"
    file._db.execute("PRAGMA max_page_count=1000000")
    await opened.record(NOW + 200, [*node(3.0), Sample("b", "topics", "t1-0", {"bytes": 5.0})])
    points = await opened.read("b", "node", "", "lag", NOW, NOW + 200)
    assert [value for _, value in points if value is not None] == [1.0, 3.0]
    await opened.close()
    again = History(path)
    await again.open()
    points = await again.read("b", "topics", "t1-0", "bytes", NOW, NOW + 200)
    assert points[-1][1] == 5.0, "what could not be made before is made now"
    await again.close()


async def test_without_room_alerts_go_on(tmp_path: Path) -> None:
    opened = AlertStore(tmp_path / "alerts.db")
    await opened.open()
    assert opened._file is not None
    db = opened._file._db
    db.execute(f"PRAGMA max_page_count={db.execute('PRAGMA page_count').fetchone()[0]}")
    alerts = [Alert("r", "n" * 500, "info", (("t", str(n)),), 1, 0, "f", 1, 1) for n in range(500)]
    with capture_logs() as lines:
        for _ in range(3):
            await opened.save("b", alerts, [], [])
    assert words_of(lines).count("alerts are not kept") == 1
    db.execute("PRAGMA max_page_count=1000000")
    await opened.save("b", alerts, [], [])
    assert len((await opened.load("b"))[0]) == 500
    await opened.close()


def test_the_history_of_alerts_has_so_many_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert store.HISTORY_MAX == 20_000
    monkeypatch.setattr(store, "HISTORY_MAX", 100)
    file = AlertFile(tmp_path / "alerts.db")
    for first in range(0, 250, 25):
        events = [AlertEvent(n, "fired", f"r{n}", "n", "info", "", 0.0) for n in range(first, first + 25)]
        file.save("b", [], [], events)
    kept = file.history("b", 1_000)
    assert [each.rule for each in kept] == [f"r{n}" for n in range(249, 149, -1)]
    file.close()


def test_a_day_by_ten_seconds_and_two_weeks_by_the_minute(tmp_path: Path) -> None:
    assert history.TIERS == {10: 86_400, 60: 14 * 86_400}
    file = HistoryFile(tmp_path / "history.db")
    for tier, seconds in history.TIERS.items():
        for at in (NOW - seconds - tier, NOW - seconds, NOW):
            file.write(tier, at, node(1.0))
        file.tidy(NOW)
        rows = file._db.execute(f"SELECT at FROM tier{tier} ORDER BY at").fetchall()
        assert rows == [(NOW - seconds,), (NOW,)], tier
    file.close()
