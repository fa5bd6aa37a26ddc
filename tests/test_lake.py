"""The topic settings `lake` and `lake.schema`, as they are checked when they are set."""

from __future__ import annotations

import pytest

from headrace.lake import check_place, check_schema, parse_place, split_columns


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("iceberg+s3://bucket/warehouse/orders", ("iceberg", "s3://bucket/warehouse/orders")),
        ("delta+file:///srv/orders%20x", ("delta", "/srv/orders x")),
        ("parquet+/srv/a+b", ("parquet", "/srv/a+b")),
        ("delta+abfss://c@a.dfs.core.windows.net/x/", ("delta", "abfss://c@a.dfs.core.windows.net/x")),
    ],
)
def test_a_place_is_a_kind_and_a_path_or_url(text: str, found: tuple[str, str]) -> None:
    assert parse_place(text) == found
    assert check_place(text) is None


def test_no_place_is_one_too() -> None:
    assert check_place("") is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("/srv/orders", "KIND is one of iceberg, delta, parquet"),
        ("hudi+/srv/orders", "KIND is one of iceberg, delta, parquet"),
        ("delta+", "the place is empty"),
        ("delta+orders", "the place 'orders' is relative"),
        ("delta+ftp://host/x", "URLs with ftp: are not supported"),
        ("delta+file://host/x", "it names the host 'host'"),
        ("delta+s3://", "names nothing. Give s3://BUCKET/PREFIX"),
        ("parquet+s3://bucket/x", "Use iceberg or delta there"),
    ],
)
def test_what_is_wrong_with_a_place_is_named(text: str, reason: str) -> None:
    assert reason in (check_place(text) or "")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "id BIGINT, name STRING",
        "id: bigint, `a,b` DECIMAL(10, 2) COMMENT 'x, y', l ARRAY<STRUCT<a: INT, b: STRING>>, m MAP<STRING, INT>",
        '{"type": "object", "properties": {"id": {"type": "integer"}}}',
        '{"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": true, "metadata": {}}]}',
    ],
)
def test_a_schema_is_ddl_or_json(text: str) -> None:
    assert check_schema(text) is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("id", "'id' is not a column"),
        ("id BIGINT,", "'' is not a column"),
        ("id WORD", "'id WORD' is not a column"),
        ("{", "it is not JSON"),
        ('{"type": "object"}', "it has no columns"),
        ("{" + '"a":[' * 100_000, "it is not JSON"),
    ],
)
def test_what_is_wrong_with_a_schema_is_named(text: str, reason: str) -> None:
    assert reason in (check_schema(text) or "")


def test_ddl_is_split_between_columns_alone() -> None:
    assert split_columns("a INT, b STRUCT<c: INT, d: INT>,`e,f` INT COMMENT 'g,'") == [
        "a INT",
        " b STRUCT<c: INT, d: INT>",
        "`e,f` INT COMMENT 'g,'",
    ]
