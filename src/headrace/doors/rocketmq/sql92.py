"""RocketMQ's filter language, SQL92: conditions on a message's properties, in three-valued logic.

A property is text, or null where the message has none. Beside a number it is read as that kind of number (a whole one
of 32 or 64 bits, or floating point), beside TRUE or FALSE as a truth value; text that is none makes the expression as a
whole fail, and the message does not pass. Comparing anything with null gives null; AND, OR and NOT know three values;
what is not true in the end does not pass.

    or      and {OR and}
    and     equal {AND equal}
    equal   compare {= compare | <> compare | IS [NOT] NULL}
    compare unary {> unary | >= unary | < unary | <= unary | [NOT] BETWEEN unary AND unary
                  | [NOT] IN (text, ...) | [NOT] CONTAINS text | [NOT] STARTSWITH text | [NOT] ENDSWITH text}
    unary   + unary | - unary | NOT unary | text | number | TRUE | FALSE | NULL | property | (or)

An expression has a bounded length, depth and number of parts, so that a reader cannot hold up the loop. Text behind a
whole expression, which RocketMQ ignores, is refused.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from headrace.errors import HeadraceError

CHARACTERS_MAX = 4_096
DEPTH_MAX = 64
PARTS_MAX = 256
COMPILED_MAX = 1_024

Value = str | int | float | bool | None
Evaluate = Callable[[Mapping[str, str]], Value]


class InvalidExpression(HeadraceError):
    """What is no expression of the language."""


class _Failed(Exception):
    """A message's properties do not fit the expression."""


class Long(int):
    """A whole number of 64 bits: beside it text is read as one, too."""


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of an expression."""

    evaluate: Evaluate
    kind: str = "value"
    """`constant`, `truth` (TRUE, FALSE, NULL), `property`, `condition` or another `value`."""
    constant: Value = None

    @property
    def is_constant(self) -> bool:
        return self.kind in ("constant", "truth")


@dataclass(frozen=True, slots=True)
class SqlFilter:
    """A compiled expression."""

    evaluate: Evaluate
    parts: int
    """How much there is to do for a message."""

    def accepts(self, properties: Mapping[str, str]) -> bool:
        """Whether a message with these properties passes."""
        try:
            return self.evaluate(properties) is True
        except _Failed:
            return False


_TOKEN = re.compile(
    r"""(?:\s|--[^\r\n]*[\r\n]|/\*.*?\*/)*
    (?:(?P<text>'(?:''|[^'])*')
    |(?P<float>[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)
    |(?P<whole>(?:0|[1-9][0-9]*)[lL]?)
    |(?P<name>[a-zA-Z_$][a-zA-Z0-9_$]*)
    |(?P<sign><>|>=|<=|[=<>(),+-])
    |(?P<end>\Z))""",
    re.VERBOSE | re.DOTALL,
)
_WORDS = frozenset(
    ("NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS", "CONTAINS", "STARTSWITH", "ENDSWITH")
)
_ORDERS = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}
_SEARCHES: Mapping[str, Callable[[str, str], bool]] = {
    "CONTAINS": str.__contains__,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}
_WHOLE = re.compile(r"[+-]?[0-9]{1,20}\Z")
_FLOAT = re.compile(r"[+-]?(?:NaN|Infinity|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[dDfF]?)\Z")


@lru_cache(maxsize=COMPILED_MAX)
def compile_sql(expression: str) -> SqlFilter:
    """The filter of an expression. Raises InvalidExpression."""
    if len(expression) > CHARACTERS_MAX:
        raise InvalidExpression(f"an expression has at most {CHARACTERS_MAX} characters (got {len(expression)})")
    parser = _Parser(expression)
    found = parser.condition(parser.either())
    if parser.token[0] != "end":
        raise parser.unexpected("AND, OR or the end")
    return SqlFilter(found.evaluate, parser.parts)


# --- values -----------------------------------------------------------------------------------------------------------


def _whole(text: str, bits: int) -> int:
    number = int(text) if _WHOLE.match(text) else 1 << 64
    if not -(1 << bits - 1) <= number < 1 << bits - 1:
        raise _Failed
    return number


def _float(text: str) -> float:
    text = text.strip()
    if not _FLOAT.match(text):
        raise _Failed
    return float(text.rstrip("dDfF") if not text.endswith("Infinity") else text)


def _as(text: str, other: Value) -> Value:
    """Text as what it is compared with."""
    if isinstance(other, bool):
        return text.lower() == "true"
    if isinstance(other, Long):
        return _whole(text, 64)
    return _whole(text, 32) if isinstance(other, int) else _float(text)


def _compare(left: Value, right: Value, order: Callable[[float, float], bool]) -> bool:
    """Compare two values that are not null."""
    if isinstance(left, str) and not isinstance(right, str):
        left = _as(left, right)
    elif isinstance(right, str) and not isinstance(left, str):
        if isinstance(left, bool):
            raise _Failed
        right = _as(right, left)
    elif isinstance(left, bool) != isinstance(right, bool):
        # A truth value comes before every number.
        return order(-1, 0)
    if isinstance(left, str) and isinstance(right, str):
        return order((left > right) - (left < right), 0)
    assert isinstance(left, int | float)
    assert isinstance(right, int | float)
    # As in Java, what is no number is equal to itself, and above all others.
    nan = math.isnan(left) - math.isnan(right)
    if nan or math.isnan(left):
        return order(nan, 0)
    return order(left, right)


def _equal(left: Evaluate, right: Evaluate) -> Evaluate:
    def evaluate(properties: Mapping[str, str]) -> Value:
        one, other = left(properties), right(properties)
        if one is None or other is None:
            return True if one is other else None if one is None else False
        return _compare(one, other, operator.eq)

    return evaluate


def _order(left: Evaluate, right: Evaluate, order: Callable[[float, float], bool]) -> Evaluate:
    def evaluate(properties: Mapping[str, str]) -> Value:
        one, other = left(properties), right(properties)
        if one is None or other is None:
            return None
        if isinstance(one, str) and isinstance(other, str):
            one, other = _float(one), _float(other)
        return _compare(one, other, order)

    return evaluate


def _negate(value: Evaluate) -> Evaluate:
    def evaluate(properties: Mapping[str, str]) -> Value:
        found = value(properties)
        if isinstance(found, bool) or not isinstance(found, int | float):
            return None
        return type(found)(-found)

    return evaluate


def _not(condition: Evaluate) -> Evaluate:
    def evaluate(properties: Mapping[str, str]) -> Value:
        found = condition(properties)
        return None if found is None else not found

    return evaluate


def _join(left: Evaluate, right: Evaluate, decisive: bool) -> Evaluate:
    """AND, which a false part decides, or OR, which a true one does."""

    def evaluate(properties: Mapping[str, str]) -> Value:
        one = left(properties)
        if one is decisive:
            return decisive
        other = right(properties)
        if other is decisive:
            return decisive
        return None if one is None or other is None else not decisive

    return evaluate


def _contain(property: Evaluate, texts: frozenset[str], negated: bool) -> Evaluate:
    def evaluate(properties: Mapping[str, str]) -> Value:
        found = property(properties)
        return None if found is None else (found in texts) is not negated

    return evaluate


def _search(value: Evaluate, search: Callable[[str, str], bool], text: str, negated: bool) -> Evaluate:
    """As in RocketMQ, false where there is nothing to search in or for, NOT or not."""

    def evaluate(properties: Mapping[str, str]) -> Value:
        found = value(properties)
        return isinstance(found, str) and text != "" and search(found, text) is not negated

    return evaluate


def _is_true(property: Evaluate) -> Evaluate:
    """A property as a condition: text is none that is true."""
    return lambda properties: None if property(properties) is None else False


# --- the language -----------------------------------------------------------------------------------------------------


class _Parser:
    """Reads an expression, one token ahead."""

    def __init__(self, expression: str) -> None:
        self._expression = expression
        self._at = 0
        self._depth = 0
        self.parts = 0
        self.token = self._next()

    def _next(self) -> tuple[str, str]:
        match = _TOKEN.match(self._expression, self._at)
        if match is None:
            raise InvalidExpression(f"the expression cannot be read from {self._expression[self._at :][:40]!r} on")
        self._at = match.end()
        kind = match.lastgroup or ""
        text = match.group(kind)
        if kind == "name" and text.upper() in _WORDS:
            return "word", text.upper()
        return kind, text

    def take(self, *expected: str) -> str | None:
        """The next token, if it is one of these signs or words."""
        kind, text = self.token
        if kind not in ("sign", "word") or text not in expected:
            return None
        self.token = self._next()
        return text

    def expect(self, expected: str) -> None:
        if self.take(expected) is None:
            raise self.unexpected(expected)

    def unexpected(self, expected: str) -> InvalidExpression:
        found = self.token[1][:40] or "the end"
        return InvalidExpression(f"the expression has {found!r} where {expected} should stand")

    def _count(self, part: _Part) -> _Part:
        self.parts += 1
        if self.parts > PARTS_MAX:
            raise InvalidExpression(f"an expression has at most {PARTS_MAX} parts")
        return part

    def _condition(self, evaluate: Evaluate) -> _Part:
        return self._count(_Part(evaluate, "condition"))

    def condition(self, part: _Part) -> _Part:
        """A part that is to be true or false."""
        if part.kind == "property":
            return self._condition(_is_true(part.evaluate))
        if part.kind not in ("condition", "truth"):
            raise InvalidExpression(f"the expression has a value where a condition should stand ({part.constant!r})")
        return part

    def either(self) -> _Part:
        left = self._both()
        while self.take("OR"):
            right = self._both()
            left = self._condition(_join(self.condition(left).evaluate, self.condition(right).evaluate, True))
        return left

    def _both(self) -> _Part:
        left = self._equality()
        while self.take("AND"):
            right = self._equality()
            left = self._condition(_join(self.condition(left).evaluate, self.condition(right).evaluate, False))
        return left

    def _equality(self) -> _Part:
        left = self._comparison()
        while sign := self.take("=", "<>", "IS"):
            if sign == "IS":
                negated = self.take("NOT") is not None
                self.expect("NULL")
                evaluate = _equal(left.evaluate, lambda _: None)
            else:
                negated = sign == "<>"
                right = self._comparison()
                evaluate = _equal(left.evaluate, right.evaluate)
                if any(each.is_constant and each.constant is None for each in (left, right)):
                    raise InvalidExpression("NULL cannot be compared: use IS NULL")
                if left.kind == "truth" and right.kind == "constant":
                    raise InvalidExpression(f"{left.constant!r} cannot be compared with {right.constant!r}")
            left = self._condition(_not(evaluate) if negated else evaluate)
        return left

    def _comparison(self) -> _Part:
        left = self._unary()
        while True:
            if sign := self.take(*_ORDERS):
                left = self._ordered(left, sign, self._unary())
                continue
            negated = self.take("NOT") is not None
            if self.take("BETWEEN"):
                left = self._between(left, negated)
            elif self.take("IN"):
                if left.kind != "property":
                    raise InvalidExpression("IN is for properties only")
                left = self._condition(_contain(left.evaluate, frozenset(self._texts()), negated))
            elif word := self.take(*_SEARCHES):
                left = self._condition(_search(left.evaluate, _SEARCHES[word], self._text(), negated))
            elif negated:
                raise self.unexpected("BETWEEN, IN, CONTAINS, STARTSWITH or ENDSWITH")
            else:
                return left

    def _ordered(self, left: _Part, sign: str, right: _Part) -> _Part:
        for part in (left, right):
            is_number = isinstance(part.constant, int | float) and not isinstance(part.constant, bool)
            if part.kind == "condition" or (part.is_constant and not is_number):
                raise InvalidExpression(f"only numbers and properties have an order (got {part.constant!r})")
        return self._condition(_order(left.evaluate, right.evaluate, _ORDERS[sign]))

    def _between(self, value: _Part, negated: bool) -> _Part:
        low = self._unary()
        self.expect("AND")
        high = self._unary()
        first, last = ("<", ">") if negated else (">=", "<=")
        above, below = self._ordered(value, first, low), self._ordered(value, last, high)
        if not negated and low.is_constant and high.is_constant and _compare(high.constant, low.constant, operator.lt):
            raise InvalidExpression(f"nothing is between {low.constant} and {high.constant}")
        return self._condition(_join(above.evaluate, below.evaluate, negated))

    def _unary(self) -> _Part:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise InvalidExpression(f"an expression is nested at most {DEPTH_MAX} deep")
        sign = self.take("+", "-", "NOT")
        if sign is None:
            found = self._primary()
        elif sign == "+":
            found = self._unary()
        elif sign == "-":
            found = self._count(_Part(_negate(self._unary().evaluate)))
        else:
            found = self._condition(_not(self.condition(self._unary()).evaluate))
        self._depth -= 1
        return found

    def _primary(self) -> _Part:
        kind, text = self.token
        if self.take("("):
            found = self.either()
            self.expect(")")
            return found
        if word := self.take("TRUE", "FALSE", "NULL"):
            return self._constant({"TRUE": True, "FALSE": False}.get(word), "truth")
        if kind == "text":
            return self._constant(self._text())
        if kind == "name":
            self.token = self._next()
            return self._count(_Part(lambda properties: properties.get(text), "property"))
        if kind == "whole":
            number = int(text.rstrip("lL"))
            if number >= 1 << 63:
                raise InvalidExpression(f"{text} is not a 64-bit number")
            self.token = self._next()
            return self._constant(number if number < 1 << 31 else Long(number))
        if kind == "float":
            value = float(text)
            if not 0 < value < math.inf:
                raise InvalidExpression(f"{text} is too large or too small")
            self.token = self._next()
            return self._constant(value)
        raise self.unexpected("a value")

    def _constant(self, value: Value, kind: str = "constant") -> _Part:
        return self._count(_Part(lambda _: value, kind, value))

    def _texts(self) -> list[str]:
        self.expect("(")
        found = [self._text()]
        while self.take(","):
            found.append(self._text())
        self.expect(")")
        return found

    def _text(self) -> str:
        kind, text = self.token
        if kind != "text":
            raise self.unexpected("text in single quotes")
        self.token = self._next()
        return text[1:-1].replace("''", "'")
