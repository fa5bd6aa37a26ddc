"""The rights that routes ask for: how an operation declares them, and how they are asked for before its handler runs.

A `Requires` says in `by` how the resource is named: a text with names in braces, of the path or of the query, as in
`{topic}/{queue}`. A route that learns only from its body, or from what it finds, for whom it works declares `Inside`,
and its handler asks. Whether a name exists is told only to those who may know it: rights are asked for by name first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from headrace.broker.security import Operation, Resource, Security, Session
from headrace.broker.security.rights import CLUSTER_NAME, Declaration, Inside, Open, Requires
from headrace.doors.http.server.messages import Request

LISTED = Open("shows what the client may describe, and leaves out the rest")
_NAME = re.compile(r"\{(\w+)\}")


def on_topic(*operations: Operation, by: str = "{topic}") -> tuple[Requires, ...]:
    """Rights on a topic."""
    return tuple(Requires(each, Resource.TOPIC, by) for each in operations)


def on_queue(*operations: Operation, by: str = "{topic}/{queue}") -> tuple[Requires, ...]:
    """Rights on a queue."""
    return tuple(Requires(each, Resource.QUEUE, by) for each in operations)


def on_group(*operations: Operation, by: str = "{group}") -> tuple[Requires, ...]:
    """Rights on a group."""
    return tuple(Requires(each, Resource.GROUP, by) for each in operations)


def on_cluster(*operations: Operation) -> tuple[Requires, ...]:
    """Rights on the cluster."""
    return tuple(Requires(each, Resource.CLUSTER, CLUSTER_NAME) for each in operations)


def names_of(declaration: Declaration) -> list[str]:
    """The names in braces that a declaration has."""
    required = declaration if isinstance(declaration, tuple) else ()
    return [name for each in required for name in _NAME.findall(each.by)]


def check(
    security: Security, session: Session, declaration: Declaration, request: Request, names: Mapping[str, str]
) -> None:
    """Ask for the declared rights of a request whose path has these names. Raises NotAuthorized."""
    if not isinstance(declaration, tuple):
        return
    parameters = request.parameters() if request.query else {}

    def resolve(name: re.Match[str]) -> str:
        return names.get(name[1], parameters.get(name[1], ""))

    for each in declaration:
        security.check(session, each.operation, each.resource, _NAME.sub(resolve, each.by))


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
