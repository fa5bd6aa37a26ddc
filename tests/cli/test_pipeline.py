"""`headrace pipeline`: flags and files of settings, without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer import Typer
from typer.testing import CliRunner

from headrace.cli.pipeline.job import Job, job
from headrace.cli.pipeline.settings import parse_size, with_file
from headrace.errors import HeadraceError

FLAGS = {"to": "", "topics": "", "file_size": "", "every": "", "option": [], "conf": []}


def test_flags_win_over_the_file_and_lists_are_joined(tmp_path: Path) -> None:
    path = tmp_path / "jobs.toml"
    path.write_text(
        '[archive]\nto = "/a"\ntopics = ["x", "y"]\nfile-size = "64m"\n[archive.option]\nfailOnDataLoss = false\n'
        '[archive.conf]\n"spark.executor.memory" = "1g"\n'
    )
    given = {**FLAGS, "to": "/b", "option": ["failOnDataLoss=true"]}
    assert with_file(given, str(path), "archive") == {
        "to": "/b",
        "topics": "x,y",
        "file_size": "64m",
        "every": "",
        "option": ["failOnDataLoss=false", "failOnDataLoss=true"],
        "conf": ["spark.executor.memory=1g"],
    }
    assert with_file(given, "", "archive") == given


@pytest.mark.parametrize(
    ("text", "reason"),
    [('[archive]\ntopic = "x"\n', "sets 'topic' in"), ("[archive\n", "cannot be used as settings")],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "jobs.toml"
    path.write_text(text)
    with pytest.raises(HeadraceError, match=reason):
        with_file(FLAGS, str(path), "archive")
    with pytest.raises(HeadraceError, match="cannot be used as settings"):
        with_file(FLAGS, str(tmp_path / "nowhere"), "archive")


def test_sizes() -> None:
    assert [parse_size(text) for text in ("7", "64k", "128M", "1g")] == [7, 65_536, 134_217_728, 1 << 30]
    for text in ("", "k", "1t", "1kk", "-1", "0", "1.5m"):
        with pytest.raises(HeadraceError, match="is no size"):
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
    path.write_text('[shout]\nloud = "yes"\n')
    with pytest.raises(HeadraceError, match=r"'loud'.*true or false"):
        CliRunner().invoke(app, ["--config", str(path)], catch_exceptions=False)
