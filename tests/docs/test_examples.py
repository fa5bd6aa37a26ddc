"""Every block of code in the README and in docs/ runs as it is written."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import typer

from headrace.cli.app import tree
from headrace.embedded import Broker

from .pages import OF_SPARK, PAGES, ROOT, Block, blocks_of, commands_of

PROGRAM = Path(__file__).with_name("program.py")
RUN = ("python", "sh", "sql")
# What a reader of the commands has already.
FILES = {"lines.txt": "one\ntwo\n", "pairs.txt": "k:one\nk:two\n", "photo.jpg": "x"}
# Of the person who reads, not of the page's program: the first steps, which fetch and install.
_FIRST_STEPS = re.compile(r"(git clone|pip install|make)\b")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with a_broker(tmp_path / "data") as broker:
        yield broker


def a_broker(data: Path) -> Broker:
    free = "127.0.0.1:0"
    return Broker(data, durability="async", http=free, nsq_http=free, lookup=free, lookup_http=free)


def synopses() -> list[tuple[str, str]]:
    """Commands in blocks without a language, and where they stand; `serve`, which parses for itself, is left out."""
    found = []
    for page in PAGES:
        for number, line in enumerate(page.read_text().splitlines(), 1):
            # Neither what goes on below, nor what leaves a word to the reader.
            if line.startswith("    headrace ") and not re.search(r"headrace serve |\\$|\.\.\.|\[", line):
                found.append((f"{page.name}:{number}", line.strip()))
    return found


def pages(*, spark: bool) -> list[Path]:
    return [
        page
        for page in sorted(PAGES, key=lambda page: OF_SPARK.index(page.name) if page.name in OF_SPARK else -1)
        if any(block.language in RUN and block.needs_spark == spark for block in blocks_of(page))
    ]


# Some pages run twenty commands, each a process.
@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", pages(spark=False), ids=lambda page: page.name)
def test_a_page_runs_from_top_to_bottom(page: Path, broker: Broker, tmp_path: Path):
    run([plan(page, [block for block in blocks_of(page) if not block.needs_spark], broker, tmp_path / "work")])


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_pages_about_spark_run_from_top_to_bottom(tmp_path: Path):
    """One after the other in one process: to start a Spark for each costs more than what they do with it. Each has a
    broker, a directory and names of its own, and the first, whose `import` decides which Python Spark runs, finds a
    process without a Spark."""
    from tests.pipeline.conftest import SETTINGS

    # Their Spark is as short-lived as those of the other tests.
    defaults = tmp_path / "conf" / "spark-defaults.conf"
    defaults.parent.mkdir()
    defaults.write_text("".join(f"{name} {value}\n" for name, value in SETTINGS.items()))
    with ExitStack() as running:
        plans = []
        for page in pages(spark=True):
            broker = running.enter_context(a_broker(tmp_path / f"{page.stem}-data"))
            blocks = [block for block in blocks_of(page) if block.needs_spark]
            plans.append(plan(page, blocks, broker, tmp_path / page.stem))
        run(plans, SPARK_CONF_DIR=str(defaults.parent))


def plan(page: Path, blocks: list[Block], broker: Broker, work: Path) -> Path:
    """What to run of a page, in a file of its directory."""
    work.mkdir()
    for name, content in FILES.items():
        (work / name).write_text(content)
    here = addresses(broker, work)
    steps = []
    for block in blocks:
        text = placed(block.text, here)
        if block.file:
            file = work / block.file
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            if file.name.startswith("test_"):
                steps.append(step(block, "sh", f"python -m pytest -q -p no:cacheprovider -o asyncio_mode=auto {file}"))
        elif block.language in ("python", "sql"):
            steps.append(step(block, block.language, text))
        elif block.language == "sh":
            steps += [
                step(block, "sh", placed(command.line, here), command.answer)
                for command in commands_of(block)
                if not _FIRST_STEPS.match(command.line)
            ]
    environment = {
        "HEADRACE_BOOTSTRAP": broker.kafka,
        "HEADRACE_HTTP": broker.http,
        "HEADRACE_URL": broker.url,
        "PYTHONPATH": str(work),
    }
    path = work / "plan.json"
    path.write_text(json.dumps({"environment": environment, "steps": steps}))
    return path


def run(plans: list[Path], **more: str) -> None:
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")},
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        **more,
    }
    command = [sys.executable, str(PROGRAM), *map(str, plans)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def step(block: Block, language: str, text: str, answer: object = None) -> dict[str, object]:
    return {"page": str(block.page), "line": block.line, "language": language, "text": text, "answer": answer}


def addresses(broker: Broker, work: Path) -> dict[str, str]:
    """What stands on the pages, and what it is here."""
    return {
        r"\.venv/bin/headrace": "headrace",
        r'headrace://127\.0\.0\.1(?=")': broker.url,
        r"(127\.0\.0\.1|localhost):9092": broker.kafka,
        r"(127\.0\.0\.1|localhost):9080": broker.http,
        r"(127\.0\.0\.1|localhost):4150": broker.nsq,
        r"(127\.0\.0\.1|localhost):4151": broker.nsq_http,
        r"(127\.0\.0\.1|localhost):4161": broker.lookup_http,
        r"127\.0\.0\.1:9464": "127.0.0.1:0",
        r"postgresql://shop@localhost/shop": "sqlite:///shop.db",
        # Nothing leaves this machine.
        r"https://[a-z]+\.example(\.com)?/": "http://127.0.0.1:9/",
        r"/srv/": f"{work}/",
        r"/var/lib/headrace": broker.data,
    }


def placed(text: str, here: dict[str, str]) -> str:
    for pattern, value in here.items():
        text = re.sub(pattern, lambda _, value=value: value, text)
    return text


@pytest.mark.parametrize("block", [b for page in PAGES for b in blocks_of(page) if b.language not in RUN], ids=str)
def test_what_is_not_run_can_be_read(block: Block):
    assert {"json": json.loads, "toml": tomllib.loads}[block.language](block.text)


@pytest.mark.parametrize("line", [pytest.param(each, id=place) for place, each in synopses()])
def test_a_command_that_is_shown_can_be_parsed(line: str, monkeypatch: pytest.MonkeyPatch):
    """It has no language, because it needs what a page's directory has not; so its flags are looked at, and no more."""
    # As the page of groups has it exported.
    monkeypatch.setenv("HEADRACE_CLUSTER", "etcd://10.0.0.1:2379/main")
    _, *words = shlex.split(line, comments=True)
    command: Any = typer.main.get_command(tree(words[:1]))
    while hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
    command.make_context(line, words)


def test_first_steps_name_what_there_is():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    text = "\n".join(page.read_text() for page in PAGES)
    assert set(re.findall(r"^make ([a-z-]+)", text, re.MULTILINE)) <= targets
    named = re.findall(r"headrace\[([a-z,]+)\]", text)
    assert named
    assert {extra for group in named for extra in group.split(",")} <= extras


@pytest.mark.parametrize(
    "page", [p for p in PAGES if any(b.language == "python" for b in blocks_of(p))], ids=lambda p: p.name
)
def test_every_name_is_defined(page: Path):
    """Handlers that no message reaches are looked at, too."""
    blocks = [block for block in blocks_of(page) if block.language == "python"]
    files = [block.text for block in blocks if block.file]
    for source in [*files, "\n".join(block.text for block in blocks if not block.file)]:
        command = [
            sys.executable,
            "-m",
            "ruff",
            "check",
            "--isolated",
            "--select",
            "F821",
            "--output-format",
            "concise",
        ]
        checked = subprocess.run([*command, "-"], input=source, capture_output=True, text=True)
        assert checked.returncode == 0, checked.stdout
