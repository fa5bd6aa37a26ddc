"""The language of `where`: conditions on a message, joined by `and`, `or` and `not`.

    value.customer.id = 42 and header.kind != "refund"
    key ~ "eu-" or (value.total >= 100 and value.items[0].sku in ("a", "b"))
    value.error is not null

Names are `key`, `value`, `value.PATH` (a path into JSON), `header.NAME`, `partition`, `offset`, `timestamp` and `size`;
operators are `= != < <= > >=`, `~` (contains), `in (...)`, `is null` and `is not null`. Values are numbers, texts in
quotes, `true`, `false`. Nothing is called and nothing repeats, so an expression costs what it has.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from headrace.broker.browse.view import MISSING, View, find, parse_path
from headrace.errors import InvalidSearch

CHARACTERS_MAX = 2_000
DEPTH_MAX = 20
Test = Callable[[View], bool]
Get = Callable[[View], object]

_TOKEN = re.compile(
    r"""\s*(?:(?P<text>"[^"]*"|'[^']*')|(?P<number>-?\d{1,19}(?:\.\d{1,19})?(?![\w.]))"""
    r"""|(?P<name>[A-Za-z_$][\w$-]*(?:\.[\w$-]+|\[(?:\d+|\*)\])*)|(?P<mark><=|>=|!=|[=<>~(),]))"""
)
_COMPARE: dict[str, Callable[[float | str, float | str], bool]] = {
    "<": lambda a, b: a < b,  # type: ignore[operator]
    "<=": lambda a, b: a <= b,  # type: ignore[operator]
    ">": lambda a, b: a > b,  # type: ignore[operator]
    ">=": lambda a, b: a >= b,  # type: ignore[operator]
}
_NUMBERS = ("partition", "offset", "timestamp", "size")


class Token(NamedTuple):
    kind: str
    text: str
    at: int


def parse(text: str) -> Test:
    """The test that an expression is. Raises InvalidSearch."""
    if len(text) > CHARACTERS_MAX:
        raise InvalidSearch(f"where must have at most {CHARACTERS_MAX} characters (got {len(text)})")
    return _Parser(text).whole()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[Token] = []
        self._depth = 0
        at = 0
        while text[at:].strip():
            found = _TOKEN.match(text, at)
            if found is None or found.lastgroup is None:
                raise self._error(at)
            self._tokens.append(Token(found.lastgroup, found[found.lastgroup], found.start(found.lastgroup)))
            at = found.end()
        self._tokens.append(Token("end", "", len(text)))
        self._next = 0

    def whole(self) -> Test:
        test = self._any()
        if self._now.kind != "end":
            raise self._error(self._now.at)
        return test

    @property
    def _now(self) -> Token:
        return self._tokens[self._next]

    def _take(self, *texts: str) -> bool:
        """Step over one of these words or marks, if it comes next."""
        token = self._now
        taken = token.kind in ("name", "mark") and token.text.lower() in texts
        self._next += taken
        return taken

    def _error(self, at: int) -> InvalidSearch:
        rest = self._text[at : at + 30]
        where = f"at {rest!r}" if rest else "at its end"
        return InvalidSearch(
            f'where cannot be read {where}. It is as in: value.customer.id = 42 and header.kind != "refund"'
        )

    def _any(self) -> Test:
        tests = [self._all()]
        while self._take("or"):
            tests.append(self._all())
        return tests[0] if len(tests) == 1 else lambda view: any(test(view) for test in tests)

    def _all(self) -> Test:
        tests = [self._one()]
        while self._take("and"):
            tests.append(self._one())
        return tests[0] if len(tests) == 1 else lambda view: all(test(view) for test in tests)

    def _one(self) -> Test:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise InvalidSearch(f"where is nested more than {DEPTH_MAX} deep")
        try:
            if self._take("not"):
                negated = self._one()
                return lambda view: not negated(view)
            if self._take("("):
                inner = self._any()
                if not self._take(")"):
                    raise self._error(self._now.at)
                return inner
            return self._condition()
        finally:
            self._depth -= 1

    def _condition(self) -> Test:
        token = self._now
        if token.kind != "name":
            raise self._error(token.at)
        self._next += 1
        get = _getter(token.text)
        if self._take("is"):
            wants_null = not self._take("not")
            if not self._take("null"):
                raise self._error(self._now.at)
            return lambda view: (get(view) in (None, MISSING)) == wants_null
        if self._take("in"):
            if not self._take("("):
                raise self._error(self._now.at)
            values = [self._value()]
            while self._take(","):
                values.append(self._value())
            if not self._take(")"):
                raise self._error(self._now.at)
            return lambda view: any(_equal(get(view), value) for value in values)
        mark = self._now.text
        if not self._take("=", "!=", "<", "<=", ">", ">=", "~"):
            raise self._error(self._now.at)
        return _comparison(get, mark, self._value())

    def _value(self) -> float | str | bool:
        token = self._now
        self._next += 1
        if token.kind == "text":
            return token.text[1:-1]
        if token.kind == "number":
            return float(token.text) if "." in token.text else int(token.text)
        if token.kind == "name" and token.text.lower() in ("true", "false"):
            return token.text.lower() == "true"
        raise self._error(token.at)


def _getter(name: str) -> Get:
    if name in _NUMBERS:
        return lambda view: getattr(view, name)
    if name == "key":
        return lambda view: _text(view.key)
    if name == "value":
        return lambda view: _text(view.value)
    if name.startswith("header."):
        header = name.removeprefix("header.")
        return lambda view: _text(view.header(header))
    if name.startswith(("value.", "value[")):
        path = parse_path(name.removeprefix("value"))
        return lambda view: find(view.json, path)
    raise InvalidSearch(
        f"where names {name!r}: it can name key, value, value.PATH, header.NAME, {', '.join(_NUMBERS)}. "
        "Texts stand in quotes"
    )


def _text(content: bytes | None) -> str | None:
    return None if content is None else content.decode("utf-8", "replace")


def _comparison(get: Get, mark: str, value: float | str | bool) -> Test:
    if mark == "=":
        return lambda view: _equal(get(view), value)
    if mark == "!=":
        return lambda view: not _equal(get(view), value)
    if mark == "~":
        part = str(value)
        return lambda view: part in found if isinstance(found := get(view), str) else False
    compare = _COMPARE[mark]

    def test(view: View) -> bool:
        found = get(view)
        if isinstance(found, bool) or isinstance(value, bool):
            return False
        if isinstance(value, str):
            return isinstance(found, str) and compare(found, value)
        number = _number(found)
        return number is not None and compare(number, value)

    return test


def _equal(found: object, value: float | str | bool) -> bool:
    if isinstance(value, bool) or isinstance(found, bool):
        return found is value
    if isinstance(value, str) or not isinstance(found, str):
        return found == value
    return _number(found) == value


def _number(found: object) -> float | None:
    """A number, also one that is written as text, as keys and headers are."""
    if isinstance(found, int | float):
        return found
    if isinstance(found, str) and len(found) < 40:
        try:
            return float(found)
        except ValueError:
            return None
    return None
