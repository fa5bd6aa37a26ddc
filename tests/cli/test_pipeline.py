"""`headrace pipeline`: flags and files of settings, without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.cli.pipeline import _with_file, parse_size
from headrace.errors import HeadraceError

FLAGS = {"to": "", "topics": "", "file_size": "", "every": "", "option": [], "conf": []}


def test_flags_win_over_the_file_and_lists_are_joined(tmp_path: Path) -> None:
    path = tmp_path / "jobs.toml"
    path.write_text(
        '[archive]\nto = "/a"\ntopics = ["x", "y"]\nfile-size = "64m"\n[archive.option]\nfailOnDataLoss = false\n'
        '[archive.conf]\n"spark.executor.memory" = "1g"\n'
    )
    given = {**FLAGS, "to": "/b", "option": ["failOnDataLoss=true"]}
    assert _with_file(given, str(path), "archive") == {
        "to": "/b",
        "topics": "x,y",
        "file_size": "64m",
        "every": "",
        "option": ["failOnDataLoss=false", "failOnDataLoss=true"],
        "conf": ["spark.executor.memory=1g"],
    }
    assert _with_file(given, "", "archive") == given


@pytest.mark.parametrize(
    ("text", "reason"),
    [('[archive]\ntopic = "x"\n', "sets 'topic' in"), ("[archive\n", "cannot be used as settings")],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "jobs.toml"
    path.write_text(text)
    with pytest.raises(HeadraceError, match=reason):
        _with_file(FLAGS, str(path), "archive")
    with pytest.raises(HeadraceError, match="cannot be used as settings"):
        _with_file(FLAGS, str(tmp_path / "nowhere"), "archive")


def test_sizes() -> None:
    assert [parse_size(text) for text in ("7", "64k", "128M", "1g")] == [7, 65_536, 134_217_728, 1 << 30]
    for text in ("", "k", "1t", "1kk", "-1", "0", "1.5m"):
        with pytest.raises(HeadraceError, match="is no size"):
            parse_size(text)
