"""How the declared rights of a request are asked for, for every door that speaks HTTP.

A `Requires` says in `by` how the resource is named: a text with names in braces, as in `{topic}/{queue}`, that the
request fills in.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from headrace.broker.security import Security, Session
from headrace.broker.security.rights import CLUSTER_NAME, Declaration, Inside, Open, Requires

_NAME = re.compile(r"\{(\w+)\}")


def names_of(declaration: Declaration) -> list[str]:
    """The names in braces that a declaration has."""
    required = declaration if isinstance(declaration, tuple) else ()
    return [name for each in required for name in _NAME.findall(each.by)]


def check(security: Security, session: Session, declaration: Declaration, find: Callable[[str], str]) -> None:
    """Ask for the declared rights of a request; `find` has what its names stand for. Raises NotAuthorized."""
    if isinstance(declaration, tuple):
        for each in declaration:
            name = _NAME.sub(lambda name: find(name[1]), each.by)
            security.check(session, each.operation, each.resource, name)


def describe(declaration: Declaration) -> str:
    """What a declaration asks for, for the documentation."""
    if isinstance(declaration, Open):
        return f"none: {declaration.why}"
    if isinstance(declaration, Inside):
        return declaration.where
    return ", ".join(_describe(each) for each in declaration)


def _describe(each: Requires) -> str:
    kind = each.resource.name.lower().replace("_", " ")
    name = "" if each.by == CLUSTER_NAME else " " + _NAME.sub(lambda name: name[1].upper(), each.by)
    return f"{each.operation.name} {kind}{name}"
