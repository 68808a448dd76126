"""Expressions of the Common Expression Language over claims and users. No other file uses the library.

Rules kept here (docs/protocol/openid-connect.md#authenticationconfiguration; cel-spec, "Language definition" and checked.proto):
* An expression sees one variable: `claims`, the token's claims as a map of text to anything, or `user` with `username`, `uid`,
  `groups` and `extra`. It may call CEL's own functions, those on texts, and optionals (`claims.?x.orValue("")`).
* It is compiled and its type checked when the configuration is read. A rule must be a bool, a name a text, and a list a text or a
  list of texts; a type that only the claims determine is allowed. The result is checked again at each evaluation.
* An evaluation has no side effects and ends: CEL loops only over existing values, and the library counts its steps. Each failure
  is a `CelFailedError`, whose text holds names and no values of claims.
* The library copies the whole list for each element that `map` or `filter` adds: 2 s for 8 000. So an expression with one of them
  fails for values that it names with more than `MAX_ELEMENTS` elements, or a text that could be split into thousands.
* The library counts a call as one step, whatever it works on. So an expression that reads a claim again for each element of a list,
  or that puts one claim into another, fails where the product of both is large. A pattern is a literal: one of 70 characters that
  a token brought took 0.1 s, and one of 2 000 took 4 s.
* The library (Google's implementation, about 14 MB) is loaded only for a configuration with an expression.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from mooring.apimachinery.codec.protobuf import ValueBudget, fields
from mooring.errors import MooringError

CLAIMS = "claims"
USER = "user"
USER_FIELDS = ("username", "uid", "groups", "extra")
MAX_EXPRESSION = 10_000
"""Characters; the longest published examples have a few hundred."""

MAX_ELEMENTS = 1_000
"""Elements of all lists in what an expression with `map` or `filter` names: up to 60 ms. Directories name a few hundred groups."""
MAX_SPLIT = 1_000
"""Times that one character may stand in a text for such an expression: a text is split at one."""

MAX_PRODUCT = 500_000
"""Elements, multiplied by elements and characters of the longest text, for an expression that reads a claim again for each element:
300 groups that are looked up in 300 others. Joining a list each time takes 50 ms then, and splitting a text 40 ms."""
MAX_FACTOR = 2_000
"""Characters of a text for an expression that puts one claim into another: the result may have the square of it, in 30 ms."""

TRUTH = frozenset({"BOOL"})
TEXT = frozenset({"STRING", "DYN"})
TEXTS = frozenset({"STRING", "DYN", "NULL", "LIST<STRING>", "LIST<DYN>"})
_TOLD = {TRUTH: "a bool", TEXT: "a string", TEXTS: "a string or a list of strings"}

_INT64 = 1 << 63
_BUILDS_A_LIST = re.compile(r"\.\s*(?:map|filter)\s*\(")
_COMPLAINT = re.compile(r"ERROR: <input>:(-?\d+):(-?\d+): ([^\n]*)")
_WITHOUT_VALUES = re.compile(r'(Key not found in map : ".{1,100}"|no such key: .{1,100}|No matching overloads found.*)')

# Numbers of fields in Expr and its parts (checked.proto, syntax.proto).
_ANY_VALUE, _CHECKED_EXPR = 2, 4
_CONST, _IDENT, _SELECT, _CALL, _LIST, _STRUCT, _COMPREHENSION = 3, 4, 5, 6, 7, 8, 9
_CONST_TEXT = 6
_INNER = {
    _SELECT: (1,),
    _CALL: (1, 3),
    _LIST: (1,),
    _STRUCT: (2,),
    _COMPREHENSION: (2, 4, 5, 6, 7),
}
"""Field numbers of the expressions inside an expression. Those inside a map are one level further down."""
_ENTRY = (3, 4)
_LOOP = (4, 5, 6, 7)
"""Field numbers of what a comprehension evaluates for each element, and at its ends."""
_PUT_INTO = (b"replace", b"join", b"format")
"""Functions whose work may be the product of their arguments."""
_BY_NAME = (b"_[_]", b"_?._", b"_[?_]")
"""`claims["x"]`, `claims.?x` and `claims[?"x"]` name a member as `claims.x` does."""


class CelError(MooringError):
    """The expression cannot be used. The text is for its author."""


class CelFailedError(MooringError):
    """The expression has no result for these values. The text is for the operator."""


class Expression:
    """A compiled expression. Equal to another of the same text over the same variable."""

    __slots__ = ("_compiled", "_puts_into", "_reads_again", "_splits", "has_open_pattern", "names", "text", "variable")

    def __init__(self, text: str, variable: str, compiled: Any) -> None:
        self.text = text
        self.variable = variable
        expression = _last_field(_last_field(compiled.serialize(), _ANY_VALUE), _CHECKED_EXPR)
        self.names = frozenset(_members_named(expression, variable))
        """Members of the variable that the expression names, however it spells that."""
        parts = tuple(_parts(expression))
        self._reads_again = any(
            kind == _COMPREHENSION and _names_a_member(_fields_numbered(node, *_LOOP), variable) for kind, node in parts
        )
        self.has_open_pattern = any(
            kind == _CALL
            and _last_field(node, 2) == b"matches"
            and not _last_field(_fields_numbered(node, 3)[-1], _CONST)
            for kind, node in parts
        )
        """True when a pattern is computed."""
        self._splits = any(kind == _CALL and _last_field(node, 2) == b"split" for kind, node in parts)
        self._puts_into = any(
            kind == _CALL and _last_field(node, 2) in _PUT_INTO and _names_a_member(_arguments(node), variable)
            for kind, node in parts
        )
        self._compiled = compiled

    def evaluate(self, value: Mapping[str, Any]) -> Any:
        """Return the result as JSON for this value of the variable. Raises CelFailedError."""
        named = [value.get(name) for name in self.names] or [value]
        if _BUILDS_A_LIST.search(self.text) and _is_long(list(named)):
            raise CelFailedError("it has more elements than `map` and `filter` may have")
        if self._reads_again or self._puts_into:
            elements, longest = _extent(named, splits=self._splits)
            is_product_large = self._reads_again and elements * (elements + longest) > MAX_PRODUCT
            if is_product_large or (self._puts_into and longest > MAX_FACTOR):
                raise CelFailedError("the claims that it combines are too long")
        try:
            found = self._compiled.eval(data={self.variable: _without_large_integers(value)})
            kind, given = found.type().name(), found.plain_value()
        except (RuntimeError, TypeError, ValueError, OverflowError):  # a budget spent, or a value that CEL has not
            raise CelFailedError("it cannot be evaluated for this token") from None
        if kind == "ERROR":
            shown = _WITHOUT_VALUES.search(str(given))
            raise CelFailedError(shown[0] if shown else "it cannot be evaluated for this token")
        return given

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expression) and (self.text, self.variable) == (other.text, other.variable)

    def __hash__(self) -> int:
        return hash((self.text, self.variable))

    def __repr__(self) -> str:
        return f"Expression({self.text!r})"


def compile_expression(text: str, variable: str, wanted: frozenset[str]) -> Expression:
    """`text` over `variable`, giving one of the types `wanted` (TRUTH, TEXT, TEXTS). Raises CelError."""
    if len(text) > MAX_EXPRESSION:
        raise CelError(f"the expression is longer than {MAX_EXPRESSION} characters")
    environment = _environment(variable)
    try:
        compiled = environment.compile(text)
        kind = compiled.return_type().name()
    except (RuntimeError, TypeError) as error:
        raise CelError(f"compilation failed: {_first_error(str(error))}") from None
    if kind not in wanted:
        raise CelError(f"must evaluate to {_TOLD[wanted]}, not to {kind.lower()}")
    expression = Expression(text, variable, compiled)
    if expression.has_open_pattern:
        raise CelError("the pattern of matches must be a literal: one that a token brings could take seconds")
    strange = expression.names - set(USER_FIELDS) if variable == USER else ()
    if strange:
        raise CelError(f"compilation failed: user has no {min(strange)}; it has {', '.join(USER_FIELDS)}")
    return expression


@cache
def _environment(variable: str) -> Any:
    try:
        from cel_expr_python import cel
        from cel_expr_python.ext import ext_optional, ext_strings
    except ImportError:
        raise CelError("expressions need the CEL library: pip install 'mooring[cel]'") from None
    kinds = cel.Type
    return cel.NewEnv(
        variables={variable: kinds.Map(kinds.STRING, kinds.DYN)},
        extensions=[ext_strings.ExtStrings(), ext_optional.ExtOptional()],
    )


def _first_error(text: str) -> str:
    """Return the first error of the compiler, with its column."""
    found = _COMPLAINT.search(text)
    if found is None:
        return "the expression cannot be read"
    column = int(found[2])
    return f"column {column}: {found[3]}" if column > 0 else found[3]


def _without_large_integers(value: Any) -> Any:
    """`value` with integers that CEL has no room for as doubles, which is how Go reads every number of a token."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value if -_INT64 <= value < _INT64 else float(value)
    if isinstance(value, Mapping):
        return {name: _without_large_integers(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_without_large_integers(one) for one in value]
    return value


def _last_field(message: bytes, wanted: int) -> bytes:
    """The last field of that number: what protobuf means by a field that is not repeated."""
    return _fields_numbered(message, wanted)[-1] if _fields_numbered(message, wanted) else b""


def _fields_numbered(message: bytes, *wanted: int) -> list[bytes]:
    return [value for number, _, value in fields(message, ValueBudget()) if number in wanted]


def _members_named(expression: bytes, variable: str) -> Iterator[str]:
    """The members of `variable` that are named anywhere in a serialized Expr."""
    for kind, _, node in fields(expression, ValueBudget()):
        if kind not in _INNER:
            continue
        if kind == _SELECT and _is_variable(_last_field(node, 1), variable):
            yield _last_field(node, 2).decode()
        if kind == _CALL and _last_field(node, 2) in _BY_NAME:
            of, name = _fields_numbered(node, 3)
            literal = _last_field(_last_field(name, _CONST), _CONST_TEXT).decode()
            if literal and _is_variable(of, variable):
                yield literal
        for inner in _fields_numbered(node, *_INNER[kind]):
            for one in _fields_numbered(inner, *_ENTRY) if kind == _STRUCT else (inner,):
                yield from _members_named(one, variable)


def _parts(expression: bytes) -> Iterator[tuple[int, bytes]]:
    """The kind and the node of a serialized Expr, and of each inside it."""
    for kind, _, node in fields(expression, ValueBudget()):
        if kind not in _INNER:
            continue
        yield kind, node
        for inner in _fields_numbered(node, *_INNER[kind]):
            for one in _fields_numbered(inner, *_ENTRY) if kind == _STRUCT else (inner,):
                yield from _parts(one)


def _arguments(call: bytes) -> list[bytes]:
    """The arguments of a call behind its first value, which may be its target."""
    given = _fields_numbered(call, 3)
    return given if _fields_numbered(call, 1) else given[1:]


def _names_a_member(expressions: list[bytes], variable: str) -> bool:
    return any(name for one in expressions for name in _members_named(one, variable))


def _is_variable(expression: bytes, variable: str) -> bool:
    return _last_field(_last_field(expression, _IDENT), 1) == variable.encode()


def _is_long(values: list[Any]) -> bool:
    """Return True for values whose lists, or a text of them when it is split, have too many elements."""
    elements, waiting = 0, values
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            if len(value) > MAX_SPLIT and max(Counter(value).values()) > MAX_SPLIT:
                return True
        elif isinstance(value, Mapping):
            elements += len(value)
            waiting.extend(value.values())
        elif isinstance(value, list | tuple):
            elements += len(value)
            waiting.extend(value)
    return elements > MAX_ELEMENTS


def _extent(values: list[Any], *, splits: bool) -> tuple[int, int]:
    """Return the elements of all lists and maps in values, and of texts that are split, and the characters of the longest text."""
    elements, longest, waiting = 0, 0, list(values)
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            longest = max(longest, len(value))
            elements += max(Counter(value).values(), default=0) if splits else 0
        elif isinstance(value, Mapping):
            elements += len(value)
            waiting.extend(value.values())
        elif isinstance(value, list | tuple):
            elements += len(value)
            waiting.extend(value)
    return elements, longest
