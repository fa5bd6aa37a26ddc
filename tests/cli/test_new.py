"""`headrace new`: what it writes is run as it is written."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace.cli.app import tree
from headrace.cli.new.project import PAYLOADS
from headrace.errors import ConfigError
from headrace.sdk import SCENARIOS

run = CliRunner().invoke

KINDS = ("consumer", "producer")
PYTEST_SECONDS = 110


def made(folder: Path, kind: str, *arguments: str) -> str:
    """A project, written."""
    done = run(tree(["new"]), ["new", kind, "--dir", str(folder), *arguments])
    assert done.exit_code == 0, (done.output, done.exception)
    return done.stdout


def generated(folder: Path, payloads: Iterator[str]) -> list[Path]:
    """A project of each kind for each scenario."""
    projects = []
    for (scenario, kind), payload in zip(itertools.product(SCENARIOS, KINDS), payloads, strict=False):
        # Not called as the package is: pytest makes a module of the folder's name.
        projects.append(folder / f"{kind}-{scenario}-{payload}")
        options = ("--topic", "qa-events", "--scenario", scenario, "--payload", payload, "--key", "question_id")
        made(projects[-1], kind, "--app", f"made.{kind}.{scenario}.{payload}", *options)
    return projects


def passes(folder: Path, projects: list[Path], *arguments: str) -> None:
    """All projects in one run of pytest, with what their own pyproject.toml says."""
    command = [
        *(sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", str(folder), "-p", "no:cacheprovider"),
        *("-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function"),
        *("-o", "pythonpath=" + " ".join(str(each / "src") for each in projects), "--import-mode=importlib"),
        *arguments,
        *map(str, projects),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PYTEST_SECONDS, check=False)
    assert done.returncode == 0, done.stdout[-4_000:] + done.stderr[-2_000:]


def tool(name: str) -> str:
    """A program of this environment."""
    found = shutil.which(name, path=os.fspath(Path(sys.executable).parent))
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def test_of_every_kind_for_every_scenario_the_tests_pass_and_nothing_is_left_to_tidy(tmp_path: Path) -> None:
    projects = generated(tmp_path, itertools.cycle(PAYLOADS))
    assert len(projects) == 2 * len(SCENARIOS)
    # One with a real broker here, all of them in the long run.
    broker = next(each.name for each in projects if "consumer-ordered" in each.name)
    passes(tmp_path, projects, "-k", f"not real_broker or {broker}")
    ruff = tool("ruff")
    for command in (["check", "--no-cache"], ["format", "--check", "--no-cache"]):
        for each in projects:
            done = subprocess.run(
                [ruff, *command, "."], cwd=each, capture_output=True, text=True, timeout=60, check=False
            )
            assert done.returncode == 0, done.stdout


def test_a_project_is_tested_by_what_it_says_itself(tmp_path: Path) -> None:
    made(tmp_path, "consumer", "--app", "toutiao.qa.audit", "--topic", "qa-events", "--scenario", "ordered")
    command = [sys.executable, "-m", "pytest", "-q", "-k", "not real_broker"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PYTEST_SECONDS, check=False)
    assert done.returncode == 0, done.stdout
    assert "Warning" not in done.stdout + done.stderr


@pytest.mark.long
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("payload", PAYLOADS)
def test_with_every_payload_on_real_brokers_and_with_its_types_checked(tmp_path: Path, payload: str) -> None:
    projects = generated(tmp_path, itertools.repeat(payload))
    passes(tmp_path, projects)
    mypy = tool("mypy")
    for each in projects:
        command = [mypy, "--strict", "--cache-dir", str(tmp_path / "cache")]
        done = subprocess.run(command, cwd=each, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, f"{each.name}: {done.stdout}"


def test_what_is_written(tmp_path: Path) -> None:
    said = made(tmp_path / "here", "consumer", "--app", "toutiao.qa.audit", "--topic", "qa-events")
    package = "src/toutiao_qa_audit"
    files = {
        *("pyproject.toml", "README.md", "Dockerfile", ".gitignore", ".dockerignore", "tests/test_app.py"),
        *(f"{package}/{name}.py" for name in ("__init__", "__main__", "app", "config", "events", "work")),
    }
    written = {str(each.relative_to(tmp_path / "here")) for each in (tmp_path / "here").rglob("*") if each.is_file()}
    assert written == files
    assert {str(Path(line).relative_to(tmp_path / "here")) for line in said.split()} == files
    assert "$" not in "".join((tmp_path / "here" / name).read_text() for name in files)
    assert 'name = "toutiao-qa-audit"' in (tmp_path / "here" / "pyproject.toml").read_text()
    assert 'App("toutiao.qa.audit", config.url)' in (tmp_path / "here" / package / "app.py").read_text()


def test_by_default_into_a_folder_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(tree(["new"]), ["new", "producer", "--app", "Shop.Web", "--topic", "orders"])
    assert done.exit_code == 0
    assert (tmp_path / "shop-web" / "src" / "shop_web" / "app.py").exists()


def test_nothing_is_overwritten_unless_it_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("mine")
    asked = ["new", "consumer", "--app", "shop", "--topic", "orders", "--dir", str(tmp_path)]
    refused = run(tree(["new"]), asked)
    assert isinstance(refused.exception, ConfigError)
    assert "has README.md: nothing was written" in str(refused.exception)
    assert [each.name for each in tmp_path.iterdir()] == ["README.md"]
    assert run(tree(["new"]), [*asked, "--force"]).exit_code == 0
    assert (tmp_path / "README.md").read_text().startswith("# shop")
    again = run(tree(["new"]), asked)
    assert "and 9 more" in str(again.exception)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--app", "shop", "--topic", "what is this"), "letters, digits"),
        (("--app", "shop", "--topic", "t" * 65), "at most 64 characters"),
        (("--app", "a b", "--topic", "t"), "an? application's name is made of"),
        (("--app", "a" * 65, "--topic", "t"), "at most 64 characters"),
        (("--app", "7up", "--topic", "t"), "gives no valid name of a Python package"),
        (("--app", "class", "--topic", "t"), "gives no valid name of a Python package"),
        (("--app", "asyncio", "--topic", "t"), "would hide an existing one"),
        (("--app", "headrace", "--topic", "t"), "would hide an existing one"),
        (("--app", "shop", "--topic", "t", "--scenario", "chaos"), "no scenario 'chaos'. Use one of"),
        (("--app", "shop", "--topic", "t", "--key", "Question Id"), "--key must be in lower case"),
        (("--app", "shop", "--topic", "t", "--key", "text"), "--key must be in lower case"),
        (("--app", "shop", "--topic", "t", "--key", "k" * 31), "at most 30 characters"),
    ],
)
def test_names_are_checked_before_anything_is_written(tmp_path: Path, arguments: tuple[str, ...], why: str) -> None:
    done = run(tree(["new"]), ["new", "consumer", "--dir", str(tmp_path / "x"), *arguments])
    assert isinstance(done.exception, ConfigError)
    with pytest.raises(ConfigError, match=why):
        raise done.exception
    assert not (tmp_path / "x").exists()


def test_the_longest_names_are_written_tidily_too(tmp_path: Path) -> None:
    ruff = tool("ruff")
    for kind, scenario in itertools.product(KINDS, SCENARIOS):
        folder = tmp_path / kind / scenario
        options = ("--topic", "t" * 64, "--key", "k" * 30, "--scenario", scenario)
        made(folder, kind, "--app", "a" * 64, *options)
    for command in (["check", "--no-cache"], ["format", "--check", "--no-cache"]):
        done = subprocess.run([ruff, *command, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout
