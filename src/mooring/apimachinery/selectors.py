"""Label selectors and field selectors: parsing, canonical text and matching.

Rules kept here:
* Labels: comma-joined requirements `key`, `!key`, `key=value`, `key==value`, `key!=value`, `key in (a,b)`,
  `key notin (a,b)`, `key>1`, `key<1`, with blanks anywhere between words; keys and values obey the rules for labels. All
  requirements must hold. As in Go, `!=` and `notin` also match objects without the key.
* Fields: comma-joined terms `label=value`, `label==value`, `label!=value`; backslash, `,` and `=` in a value are escaped with
  a backslash. An absent field is the empty text.
* `str(selector)` is canonical (label requirements sorted by key, values sorted, `=` for the `==` of fields), and parsing it
  gives the same selector.
* A selector that cannot be parsed is a BadRequestError (400) with the found and the expected token.
* A selector has a bounded length and number of requirements: each requirement is compared with each object of a list. The number of
  values in a set is bounded by the length alone, because membership in a set is one lookup.

Source: docs/protocol/selectors.md; k8s.io/apimachinery pkg/labels and pkg/fields.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mooring.apimachinery.names import label_value_errors, qualified_name_errors
from mooring.apimachinery.schema import Obj
from mooring.errors import BadRequestError, quoted

MAX_SELECTOR = 16_384
"""Characters of a selector: two hundred values of the greatest length, or thousands of short ones."""
MAX_REQUIREMENTS = 100
"""Requirements or terms of one selector. Clients send a few, and a set of values is one requirement."""

_ORDER = frozenset({">", "<"})
_SETS = frozenset({"in", "notin"})
_OPERATORS = ("in", "notin", "=", "==", "!=", ">", "<")
_NAMED_OPERATORS = "in, notin, =, ==, !=, gt, lt"
"""The operators as an error lists them."""
_OBJECT_OPERATORS = {"In": "in", "NotIn": "notin", "Exists": "exists", "DoesNotExist": "!"}


@dataclass(frozen=True, slots=True)
class Requirement:
    """One condition on one label. `operator`: `=` `==` `!=` `in` `notin` `exists` `!` `>` `<`; `values` are sorted."""

    key: str
    operator: str
    values: tuple[str, ...] = ()
    _set: frozenset[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # The class is frozen.
        object.__setattr__(self, "_set", frozenset(self.values))

    def matches(self, labels: Mapping[str, str]) -> bool:
        operator, value = self.operator, labels.get(self.key)
        if operator == "exists":
            return value is not None
        if operator == "!":
            return value is None
        if operator in ("!=", "notin"):
            return value is None or value not in self._set
        if value is None:
            return False
        if operator in _ORDER:
            number = _integer(value)
            bound = int(self.values[0])
            return number is not None and (number > bound if operator == ">" else number < bound)
        return value in self._set

    def __str__(self) -> str:
        if self.operator == "exists":
            return self.key
        if self.operator == "!":
            return f"!{self.key}"
        if self.operator in _SETS:
            # One empty value needs a comma, to differ from no value.
            return f"{self.key} {self.operator} ({','.join(self.values) or ','})"
        return f"{self.key}{self.operator}{self.values[0]}"


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """Selects objects that match all requirements; without any, every object."""

    requirements: tuple[Requirement, ...] = ()

    @property
    def empty(self) -> bool:
        """True when the selector matches every object."""
        return not self.requirements

    def matches(self, labels: Mapping[str, str]) -> bool:
        return all(requirement.matches(labels) for requirement in self.requirements)

    def labels(self) -> tuple[str, ...]:
        """Return the keys of the requirements, in order, each once."""
        return tuple(dict.fromkeys(requirement.key for requirement in self.requirements))

    def __str__(self) -> str:
        return ",".join(map(str, self.requirements))


EVERY_LABEL = LabelSelector()


def parse_label_selector(text: str) -> LabelSelector:
    """Parse a selector. Raises BadRequestError."""
    _check_length(text)
    tokens = _Tokens(text)
    requirements: list[Requirement] = []
    while not tokens.ended():
        _check_count(requirements)
        if not (tokens.is_word() or tokens.next == "!"):
            raise _unexpected(tokens, "!, identifier, or 'end of string'")
        try:
            requirements.append(_parse_requirement(tokens))
        except BadRequestError as error:
            raise BadRequestError(f"unable to parse requirement: {error.message}") from None
        if tokens.ended():
            break
        if tokens.next != ",":
            raise _unexpected(tokens, "',' or 'end of string'")
        tokens.take()
        if not (tokens.is_word() or tokens.next == "!"):
            raise _unexpected(tokens, "identifier after ','")
    return _sorted_selector(requirements)


def _check_length(text: str) -> None:
    if len(text) > MAX_SELECTOR:
        raise BadRequestError(f"a selector may have at most {MAX_SELECTOR} characters; select in several requests")


def _check_count(before: Sequence[object]) -> None:
    """Raise BadRequestError when no requirement may follow those of `before`."""
    if len(before) >= MAX_REQUIREMENTS:
        raise BadRequestError(
            f"a selector may have at most {MAX_REQUIREMENTS} requirements; select in several requests"
        )


def label_selector_from_object(obj: Obj) -> LabelSelector:
    """Return the selector of a metav1.LabelSelector object (matchLabels, matchExpressions). Raises BadRequestError."""
    labels, expressions = obj.get("matchLabels") or {}, obj.get("matchExpressions") or []
    if not isinstance(labels, dict) or not isinstance(expressions, list):
        raise BadRequestError("a label selector has matchLabels (an object) and matchExpressions (a list)")
    requirements = [
        _checked_requirement(_checked_text(key), "=", [_checked_text(value)]) for key, value in labels.items()
    ]
    for item in expressions:
        expression = item if isinstance(item, dict) else {}
        operator, values = expression.get("operator"), expression.get("values") or []
        if not isinstance(operator, str) or operator not in _OBJECT_OPERATORS:
            quoted_operator = json.dumps(operator) if isinstance(operator, str) else '""'
            raise BadRequestError(f"{quoted_operator} is not a valid label selector operator")
        if not isinstance(values, list):
            raise BadRequestError("values of a label selector requirement are a list of strings")
        requirements.append(
            _checked_requirement(
                _checked_text(expression.get("key")),
                _OBJECT_OPERATORS[operator],
                [_checked_text(value) for value in values],
            )
        )
    return _sorted_selector(requirements)


def _checked_text(value: object) -> str:
    if not isinstance(value, str):
        raise BadRequestError("keys and values of a label selector are strings")
    return value


def _sorted_selector(requirements: list[Requirement]) -> LabelSelector:
    return LabelSelector(tuple(sorted(requirements, key=lambda requirement: requirement.key)))


def _parse_requirement(tokens: _Tokens) -> Requirement:
    absent = tokens.next == "!"
    if absent:
        tokens.take()
    if not tokens.is_word():
        raise _unexpected(tokens, "identifier")
    key = tokens.take()
    if absent or tokens.ended() or tokens.next == ",":
        return _checked_requirement(key, "!" if absent else "exists", [])
    if tokens.next not in _OPERATORS:
        raise _unexpected(tokens, _NAMED_OPERATORS)
    operator = tokens.take()
    return _checked_requirement(key, operator, _parse_set(tokens) if operator in _SETS else _parse_value(tokens))


def _parse_value(tokens: _Tokens) -> list[str]:
    if tokens.ended() or tokens.next == ",":
        return [""]
    if not tokens.is_word():
        raise _unexpected(tokens, "identifier")
    return [tokens.take()]


def _parse_set(tokens: _Tokens) -> list[str]:
    """Parse `(a,b)`; a comma without a value on one side means the empty value there."""
    if tokens.next != "(":
        # Without a comma, as Go has it.
        raise BadRequestError(f"found '{tokens.next}' expected: '('")
    tokens.take()
    values, commas = [], 0
    expects_value = True
    while tokens.next != ")":
        if tokens.is_word() and expects_value:
            values.append(tokens.take())
            expects_value = False
        elif tokens.next == ",":
            if expects_value:
                values.append("")
            tokens.take()
            commas += 1
            expects_value = True
        elif not expects_value:
            raise _unexpected(tokens, "',' or ')'")
        else:
            raise _unexpected(tokens, "',', or identifier" if commas else "',', ')' or identifier")
    tokens.take()
    if commas and expects_value:
        values.append("")
    return values


def _checked_requirement(key: str, operator: str, values: list[str]) -> Requirement:
    _raise_invalid("<nil>", key, qualified_name_errors(key))
    if operator in _SETS and not values:
        raise BadRequestError("values: Invalid value: []: for 'in', 'notin' operators, values set can't be empty")
    if operator in ("exists", "!") and values:
        raise BadRequestError("values: Invalid value: values set must be empty for exists and does not exist")
    if operator in _ORDER and _integer(values[0]) is None:
        raise BadRequestError(
            f"values[0]: Invalid value: {json.dumps(values[0])}: for 'Gt', 'Lt' operators, the value must be an integer"
        )
    for index, value in enumerate(values):
        _raise_invalid(f"values[{index}][{key}]", value, label_value_errors(value))
    return Requirement(key, operator, tuple(sorted(set(values))))


def _raise_invalid(path: str, value: str, errors: list[str]) -> None:
    if errors:
        raise BadRequestError(f"{path}: Invalid value: {json.dumps(value, ensure_ascii=False)}: {'; '.join(errors)}")


_decimal = re.compile(r"[+-]?[0-9]{1,19}").fullmatch


def _integer(text: str) -> int | None:
    """Return an integer of 64 bits as Go's strconv.ParseInt reads it; None for other text."""
    if not _decimal(text):
        return None
    number = int(text)
    return number if -(2**63) <= number < 2**63 else None


_SYMBOLS = "=!(),><"
_token = re.compile(rf"[ \t\r\n]*(==|!=|[{_SYMBOLS}]|[^{_SYMBOLS} \t\r\n]+|\Z)").match


class _Tokens:
    """Tokens of a label selector with one of lookahead. After the last token the next is always ""."""

    __slots__ = ("_end", "_source", "next")

    def __init__(self, text: str) -> None:
        self._source = text
        self._end = 0
        self.next = ""
        self._advance()

    def ended(self) -> bool:
        return self.next == ""

    def is_word(self) -> bool:
        return self.next != "" and self.next[0] not in _SYMBOLS

    def take(self) -> str:
        taken = self.next
        self._advance()
        return taken

    def _advance(self) -> None:
        found = _token(self._source, self._end)
        assert found is not None  # every character begins a token
        self.next, self._end = found[1], found.end()


def _unexpected(tokens: _Tokens, expected: str) -> BadRequestError:
    return BadRequestError(f"found '{tokens.next}', expected: {expected}")


@dataclass(frozen=True, slots=True)
class FieldTerm:
    """Condition that field `label` equals `value`, or with `negated` that it does not."""

    label: str
    value: str
    negated: bool = False

    def __str__(self) -> str:
        value = self.value.replace("\\", "\\\\").replace(",", "\\,").replace("=", "\\=")
        return f"{self.label}{'!=' if self.negated else '='}{value}"


@dataclass(frozen=True, slots=True)
class FieldSelector:
    """Selects objects that match all terms; without any, every object."""

    terms: tuple[FieldTerm, ...] = ()

    @property
    def empty(self) -> bool:
        """True when the selector matches every object."""
        return not self.terms

    def matches(self, fields: Mapping[str, str]) -> bool:
        return all((fields.get(term.label, "") == term.value) is not term.negated for term in self.terms)

    def requires(self, label: str) -> str | None:
        """Return the value of the first `=` term for `label`, or None."""
        return next((term.value for term in self.terms if term.label == label and not term.negated), None)

    def renamed(self, labels: Mapping[str, str]) -> FieldSelector:
        """Return the selector with other labels, where `labels` has one for a label of this selector."""
        return FieldSelector(tuple(replace(term, label=labels.get(term.label, term.label)) for term in self.terms))

    def labels(self) -> tuple[str, ...]:
        """Return the fields of the terms, in order, each once."""
        return tuple(dict.fromkeys(term.label for term in self.terms))

    def __str__(self) -> str:
        return ",".join(map(str, self.terms))


EVERY_FIELD = FieldSelector()

_operator = re.compile("!=|==|=").search
_escape = re.compile(r"\\(.?)", re.DOTALL).sub
_comma = re.compile(r"(?:[^\\,]|\\.|\\\Z)*", re.DOTALL).match


def parse_field_selector(text: str) -> FieldSelector:
    """Parse a selector. Raises BadRequestError."""
    _check_length(text)
    terms: list[FieldTerm] = []
    for part in _split(text):
        _check_count(terms)
        found = _operator(part)
        if found is None:
            raise BadRequestError(f"invalid selector: '{text}'; can't understand '{part}'")
        terms.append(FieldTerm(part[: found.start()], _unescape(part[found.end() :]), found[0] == "!="))
    return FieldSelector(tuple(terms))


def _split(text: str) -> Iterator[str]:
    """Yield the parts between unescaped commas, without empty ones."""
    at = 0
    while at <= len(text):
        found = _comma(text, at)
        assert found is not None  # it may be empty
        if found[0]:
            yield found[0]
        at = found.end() + 1


def _unescape(value: str) -> str:
    if "\\" not in value and "=" not in value:
        return value
    if "=" in _escape("", value):
        raise BadRequestError("invalid field selector: unescaped character in value: 61")

    def one(found: re.Match[str]) -> str:
        if found[1] not in ("\\", ",", "="):
            raise BadRequestError(f"invalid field selector: invalid escape sequence: {found[0]}")
        return found[1]

    return _escape(one, value)


NAME = "metadata.name"
NAMESPACE = "metadata.namespace"


def check_field_labels(selector: FieldSelector, own: Collection[str]) -> None:
    """Raise BadRequestError for the first field that cannot be selected by: objects have name, namespace, and the labels of their
    `own` kind. The words are kube-apiserver's, which says it otherwise of kinds that have none."""
    for label in selector.labels():
        if label in (NAME, NAMESPACE) or label in own:
            continue
        if own:
            raise BadRequestError(f"field label not supported: {label}")
        raise BadRequestError(f'{quoted(label)} is not a known field selector: only "{NAME}", "{NAMESPACE}"')
