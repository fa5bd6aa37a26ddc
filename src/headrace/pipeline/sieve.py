"""Which values of a block look as if they did not fit a schema: quickly, and not quite exactly.

msgspec reads a value by a type in a microsecond, a tenth of what Python takes. What it refuses is looked at again, and
so is what it lets through and Arrow's parser does not take; so it may err on both sides, and there may be none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
import pyarrow as pa

Sieve = Callable[[pa.Array], Any]
"""Takes a block of values; gives the rows that look bad."""

DATE = r"^\d{4}-\d{2}-\d{2}$"
TIME = r"^\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?(Z|[+-]\d{2}:?\d{2})?)?$"


def make_sieve(kind: pa.DataType, strict: bool = False) -> Sieve | None:
    """A sieve for values of a type, whose objects have no other fields where it is `strict`; None where msgspec is not
    installed."""
    try:
        import msgspec
    except ImportError:
        return None
    decode = msgspec.json.Decoder(_msgspec_type(kind, strict)).decode
    # What msgspec raises, besides its own: a text that is no UTF-8, an object that is nested too deeply.
    refused = (msgspec.MsgspecError, ValueError, RecursionError)

    def sift(values: pa.Array) -> Any:
        found = []
        for row, value in enumerate(values.to_pylist()):
            if value is not None:
                try:
                    decode(value)
                except refused:
                    found.append(row)
        return np.array(found, np.int64)

    return sift


def _msgspec_type(kind: pa.DataType, strict: bool) -> Any:
    """The type that msgspec is to read a value as."""
    import msgspec

    if pa.types.is_struct(kind):
        # By their places: a column's name need not be one in Python.
        fields = [(f"f{index}", _msgspec_type(field.type, strict), None) for index, field in enumerate(kind)]
        names = {f"f{index}": field.name for index, field in enumerate(kind)}
        return msgspec.defstruct("Row", fields, rename=names, forbid_unknown_fields=strict) | None
    if pa.types.is_list(kind):
        return list[_msgspec_type(kind.value_type, strict)] | None  # type: ignore[misc]
    if pa.types.is_boolean(kind):
        return bool | None
    if pa.types.is_integer(kind):
        limit = 1 << (kind.bit_width - 1)
        return Annotated[int, msgspec.Meta(ge=-limit, le=limit - 1)] | None
    if pa.types.is_floating(kind):
        return float | None
    if pa.types.is_timestamp(kind):
        return Annotated[str, msgspec.Meta(pattern=TIME)] | None
    if pa.types.is_date(kind):
        return Annotated[str, msgspec.Meta(pattern=DATE)] | None
    return str | None if pa.types.is_string(kind) else Any
