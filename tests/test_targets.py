"""Paths and URLs that users give."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.targets import TargetInvalid, local_path


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("/srv/archive", "/srv/archive"),
        ("archive", "archive"),
        ("./s3:/bucket/x", "./s3:/bucket/x"),
        ("2026-01-01T12:00/x", "2026-01-01T12:00/x"),
        ("a/b:c", "a/b:c"),
        ("file:///srv/archive", "/srv/archive"),
        ("file:/srv/archive", "/srv/archive"),
        ("FILE://localhost/srv/archive", "/srv/archive"),
        ("file:///srv/with%20space/%C3%A4%25%3F%23", "/srv/with space/ä%?#"),
        (Path("file:/srv/archive"), "/srv/archive"),
        ("file:///", "/"),
    ],
)
def test_a_path_and_a_file_url_name_the_same(target: str | Path, path: str) -> None:
    assert local_path(target, "--to") == path


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        (
            "s3://bucket/x",
            r"--to cannot be 's3://bucket/x': URLs with s3: are not supported\. Give a path, or file:///",
        ),
        (Path("s3://bucket/x"), "URLs with s3: are not supported"),
        ("S3A://bucket", "URLs with S3A: are not supported"),
        ("hdfs:/x", "URLs with hdfs: are not supported"),
        ("gs:bucket", r"write \./gs:bucket if that is the name of a folder"),
        ("https://x/y", "URLs with https: are not supported"),
        ("file://srv/archive", "names the host 'srv'"),
        ("file://localhost:80/x", "names the host 'localhost:80'"),
        ("file://[::1/x", "Invalid IPv6"),
        ("file:relative", "is absolute"),
        ("file:", "is absolute"),
        ("file://", "is absolute"),
        ("file:///a?b", r"write \? as %3F"),
        ("file:///a#b", r"write \? as %3F"),
        ("file:///a?", r"write \? as %3F"),
        ("file:///a%zz", "'%zz' is not a percent-encoded byte"),
        ("file:///a%00b", "NUL"),
        ("a\0b", "NUL"),
        ("", "--to is empty"),
    ],
)
def test_what_cannot_be_served_is_refused_with_what_can(target: str | Path, reason: str) -> None:
    with pytest.raises(TargetInvalid, match=reason):
        local_path(target, "--to")


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1))
def test_every_absolute_path_can_be_said_as_a_url(name: str) -> None:
    path = Path("/", name.lstrip("/") or "x")
    assert Path(local_path(path.as_uri(), "--to")) == path
