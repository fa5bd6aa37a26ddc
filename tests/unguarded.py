"""The security of a broker that is a stand-in: everything is allowed, as it is by default."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace


class Unguarded:
    is_enforced = False
    users = SimpleNamespace(by_name={})

    def check(self, *asked: object) -> None:
        pass

    def check_create(self, *asked: object) -> None:
        pass

    def watch(self, *asked: object) -> SimpleNamespace:
        return SimpleNamespace(end=lambda: None)

    def visible(self, session: object, resource: object, names: Iterable[str]) -> list[str]:
        return list(names)
