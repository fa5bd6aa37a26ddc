"""JSON schemas of payloads: of what msgspec takes (builtins, dataclasses, structs) and of pydantic's models.

All types of a document are asked for at once, because they share names: what has a name of its own becomes a component
and is referred to, so that a type stands once however many messages carry it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from headrace.sdk.payload import is_pydantic

Schema = dict[str, Any]
BYTES, TEXT, JSON = "application/octet-stream", "text/plain", "application/json"
REFERENCE = "#/components/schemas/"


def content_type(kind: Any) -> str:
    """How a payload travels."""
    return {bytes: BYTES, None: BYTES, str: TEXT}.get(kind, JSON)


def schemas(kinds: Sequence[Any]) -> tuple[list[Schema], dict[str, Schema]]:
    """The schema of each type, and the components that they refer to."""
    plain = [kind for kind in kinds if _by_msgspec(kind)]
    try:
        made, components = msgspec.json.schema_components(plain, ref_template=REFERENCE + "{name}")
    except TypeError as error:
        raise TypeError(f"of a payload no schema can be made: {error}") from None
    ready = iter(made)
    found: list[Schema] = []
    for kind in kinds:
        if _by_msgspec(kind):
            found.append(next(ready))
        elif is_pydantic(kind):
            found.append(_of_model(kind, components))
        elif kind is bytes or kind is None:
            found.append({"type": "string", "format": "binary"})
        else:
            found.append({"type": "string"})
    return found, components


def _by_msgspec(kind: Any) -> bool:
    return content_type(kind) == JSON and not is_pydantic(kind)


def _of_model(kind: Any, components: dict[str, Schema]) -> Schema:
    """A model, with the models in it, among the components."""
    for prefix in ("", f"{kind.__module__}."):
        whole = kind.model_json_schema(ref_template=f"{REFERENCE}{prefix}{{model}}")
        inner = whole.pop("$defs", {})
        named = {f"{prefix}{name}": schema for name, schema in {**inner, kind.__name__: whole}.items()}
        if "$ref" in whole:
            # A model that contains itself is one of its own parts, and only referred to here.
            named = {f"{prefix}{name}": schema for name, schema in inner.items()}
        if all(components.get(name, schema) == schema for name, schema in named.items()):
            break
    components.update(named)
    return {"$ref": f"{REFERENCE}{prefix}{kind.__name__}"}
