"""The topic settings `lake` and `lake.schema`, as the broker checks them and the job that follows topics reads them.

`lake` is KIND+PLACE: `iceberg+s3://bucket/orders`, `delta+file:///srv/orders`, `parquet+/srv/orders`. The broker keeps
what the table does not have yet, by the committed offsets of the topic's own group (`group_of`).
"""

from __future__ import annotations

import json
import re

from headrace.targets import TargetInvalid, is_remote, local_path

# Of the topic's group, and of the query that writes its table.
PREFIX = "lake-"
KINDS = ("iceberg", "delta", "parquet")
EXAMPLES = "iceberg+s3://bucket/orders, delta+file:///srv/orders, parquet+/srv/orders"
# Spark's names of types, and what they may begin with.
TYPES = (
    *("boolean", "byte", "tinyint", "short", "smallint", "int", "integer", "long", "bigint", "float", "real", "double"),
    *("dec", "decimal", "numeric", "string", "binary", "date", "timestamp", "timestamp_ntz", "array", "struct", "map"),
)
COLUMN = re.compile(r"(?:`(?:[^`]|``)+`|[^\s`:,<>()]+)(?:\s*:\s*|\s+)([A-Za-z_]+)\b.*", re.DOTALL)


def group_of(topic: str) -> str:
    """The consumer group whose offsets show how far a topic's table is."""
    return f"{PREFIX}{topic}"


def parse_place(text: str) -> tuple[str, str]:
    """The kind of table and its path or URL. Raises TargetInvalid."""
    kind, plus, place = text.partition("+")
    if kind not in KINDS or not plus:
        raise TargetInvalid(f"it is KIND+PLACE, and KIND is one of {', '.join(KINDS)}: {EXAMPLES}")
    if not is_remote(place):
        path = local_path(place, "the place")
        if not path.startswith("/"):
            raise TargetInvalid(f"the place {place!r} is relative, and the job runs elsewhere. Give an absolute path.")
        return kind, path
    if kind == "parquet":
        raise TargetInvalid("files cannot be moved into place at once in an object store. Use iceberg or delta there.")
    scheme, _, rest = place.partition("://")
    if not rest.strip("/"):
        raise TargetInvalid(f"the place {place!r} names nothing. Give {scheme}://BUCKET/PREFIX.")
    return kind, place.rstrip("/")


def check_place(text: str) -> str | None:
    """What is wrong with a value of `lake`; empty is none."""
    try:
        parse_place(text or "parquet+/")
    except TargetInvalid as error:
        return str(error)
    return None


def check_schema(text: str) -> str | None:
    """What is wrong with a value of `lake.schema`, as far as can be known without Spark; empty is none."""
    if text.startswith("{"):
        try:
            parsed = json.loads(text)
        except (ValueError, RecursionError) as error:
            return f"it is not JSON ({error})"
        named = parsed.get("properties"), parsed.get("fields")
        return None if any(named) else "it has no columns: a JSON Schema has properties, and Spark's JSON has fields"
    for column in split_columns(text) if text else ():
        found = COLUMN.fullmatch(column.strip())
        if found is None or found[1].lower() not in TYPES:
            return f"{column.strip()!r} is not a column. Give Spark's DDL (id BIGINT, name STRING), or a JSON Schema."
    return None


def split_columns(ddl: str) -> list[str]:
    """DDL at the commas that stand between columns: not in a type, a comment or a name."""
    found, depth, quote = [""], 0, ""
    for letter in ddl:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "`'\"":
            quote = letter
        elif letter in "<(":
            depth += 1
        elif letter in ">)":
            depth -= 1
        elif letter == "," and not depth:
            found.append("")
            continue
        found[-1] += letter
    return found
