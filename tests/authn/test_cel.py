"""Expressions over claims and users.

Source: docs/protocol/openid-connect.md#authenticationconfiguration; cel-spec.
"""

from __future__ import annotations

import builtins
import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.authn.cel import (
    CLAIMS,
    MAX_ELEMENTS,
    MAX_EXPRESSION,
    MAX_FACTOR,
    MAX_SPLIT,
    TEXT,
    TEXTS,
    TRUTH,
    USER,
    CelError,
    CelFailedError,
    Expression,
    compile_expression,
)

JANE = {"username": "jane", "uid": "u-1", "groups": ["dev", "ops"], "extra": {"example.com/team": ["a"]}}


def given_by(text: str, value: dict[str, Any], variable: str = CLAIMS, wanted: frozenset[str] = TEXTS) -> Any:
    return compile_expression(text, variable, wanted).evaluate(value)


@pytest.mark.parametrize(
    ("text", "claims", "wanted", "found"),
    [
        pytest.param("claims.sub", {"sub": "jane"}, TEXT, "jane", id="a claim"),
        pytest.param("'oidc:' + claims.sub", {"sub": "jane"}, TEXT, "oidc:jane", id="a claim behind a prefix"),
        pytest.param('claims.?sub.orValue("none")', {}, TEXT, "none", id="a claim that may be missing"),
        pytest.param('claims[?"sub"].orValue("none")', {"sub": "x"}, TEXT, "x", id="the same by its name"),
        pytest.param("claims['a b']['c']", {"a b": {"c": "x"}}, TEXT, "x", id="a claim within a claim"),
        pytest.param(
            "claims.email.lowerAscii().split('@')[0]", {"email": "Jane@x"}, TEXT, "jane", id="functions on texts"
        ),
        pytest.param(
            "claims.groups.map(g, 'p:' + g)", {"groups": ["a", "b"]}, TEXTS, ["p:a", "p:b"], id="each of a list"
        ),
        pytest.param("claims.roles.split(',')", {"roles": "a,b"}, TEXTS, ["a", "b"], id="a list in a text"),
        pytest.param("[claims.a, 'b'].join('-')", {"a": "a"}, TEXT, "a-b", id="a list into a text"),
        pytest.param("claims.?groups.orValue([])", {}, TEXTS, [], id="a list that may be missing"),
        pytest.param("claims.a == null ? [] : [string(claims.a)]", {"a": None}, TEXTS, [], id="null"),
        pytest.param("claims.exp - claims.nbf <= 86400", {"exp": 90000, "nbf": 4000}, TRUTH, True, id="numbers"),
        pytest.param("claims.hd == 'example.com'", {"hd": "other"}, TRUTH, False, id="a comparison"),
        pytest.param("has(claims.admin) && claims.admin", {"admin": True}, TRUTH, True, id="a truth"),
        pytest.param("claims.sub.matches('^[a-z]+$')", {"sub": "jane1"}, TRUTH, False, id="a pattern"),
        pytest.param("claims.n == 1", {"n": 1.0}, TRUTH, True, id="a double that is an integer"),
        pytest.param("claims.sub", {"sub": "x", "n": [2**70, {"m": -(2**64)}]}, TEXT, "x", id="numbers beyond 64 bits"),
        pytest.param("claims.n > 1.0e20", {"n": 2**70}, TRUTH, True, id="a number beyond 64 bits is a double"),
        pytest.param("dyn(claims.sub)", {"sub": 5}, TEXT, 5, id="a type that only the claims can tell"),
    ],
)
def test_what_expressions_over_claims_give(
    text: str, claims: dict[str, Any], wanted: frozenset[str], found: Any
) -> None:
    assert given_by(text, claims, wanted=wanted) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        pytest.param("!user.username.startsWith('system:')", True, id="the name"),
        pytest.param("user.uid == 'u-1'", True, id="the uid"),
        pytest.param("user.groups.all(g, !g.startsWith('system:'))", True, id="all groups"),
        pytest.param("'admins' in user.groups", False, id="one group"),
        pytest.param("user.extra['example.com/team'] == ['a']", True, id="an extra value"),
        pytest.param("has(user.extra) && size(user['groups']) == 2", True, id="other spellings"),
    ],
)
def test_what_expressions_over_users_give(text: str, found: bool) -> None:
    assert given_by(text, JANE, USER, TRUTH) is found


@pytest.mark.parametrize(
    ("text", "variable", "wanted", "why"),
    [
        pytest.param("", CLAIMS, TEXT, "compilation failed: column 1: Syntax error", id="nothing"),
        pytest.param("claims.", CLAIMS, TEXT, "compilation failed: column 8: Syntax error", id="half an expression"),
        pytest.param("foo(claims.a)", CLAIMS, TEXT, "column 4: undeclared reference to 'foo'", id="no such function"),
        pytest.param("user.username", CLAIMS, TEXT, "undeclared reference to 'user", id="the user among claims"),
        pytest.param("claims.a", USER, TRUTH, "undeclared reference to 'claims", id="claims about a user"),
        pytest.param("user.name == 'x'", USER, TRUTH, "user has no name; it has username, uid", id="no such part"),
        pytest.param("has(user.mail)", USER, TRUTH, "user has no mail", id="asked whether there is no such part"),
        pytest.param("user['mail'] == 'x'", USER, TRUTH, "user has no mail", id="no such part by its name"),
        pytest.param(
            "claims.a", CLAIMS, TRUTH, "must evaluate to a bool, not to dyn", id="a rule that may be anything"
        ),
        pytest.param("'a'", CLAIMS, TRUTH, "must evaluate to a bool, not to string", id="a rule that is a text"),
        pytest.param("1", CLAIMS, TEXT, "must evaluate to a string, not to int", id="a name that is a number"),
        pytest.param(
            "['a']", CLAIMS, TEXT, "must evaluate to a string, not to list<string>", id="a name that is a list"
        ),
        pytest.param("[1]", CLAIMS, TEXTS, "a string or a list of strings, not to list<int>", id="a list of numbers"),
        pytest.param("{'a': 'b'}", CLAIMS, TEXTS, "not to map<string, string>", id="a map"),
        pytest.param("claims.?a", CLAIMS, TEXT, "not to optional_type<dyn>", id="an optional left closed"),
        pytest.param("1" + "+1" * 200, CLAIMS, TEXT, "Exceeded max recursion depth", id="a very long sum"),
        pytest.param("a" * (MAX_EXPRESSION + 1), CLAIMS, TEXT, "longer than 10000 characters", id="a novel"),
        pytest.param("'\udc80'", CLAIMS, TEXT, "the expression cannot be read", id="a character that is none"),
    ],
)
def test_expressions_that_cannot_be_used(text: str, variable: str, wanted: frozenset[str], why: str) -> None:
    with pytest.raises(CelError) as refused:
        compile_expression(text, variable, wanted)
    assert why in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "claims", "why"),
    [
        pytest.param("claims.sub", {}, 'Key not found in map : "sub"', id="a claim that is not there"),
        pytest.param("claims.a + 'x'", {"a": 5}, "No matching overloads found : _+_(int64, string)", id="other types"),
        pytest.param("claims.a.b", {"a": "secret"}, "it cannot be evaluated for this token", id="a member of a text"),
        pytest.param("[1][claims.n] == 1 ? 'a' : 'b'", {"n": 5}, "it cannot be evaluated", id="beyond the list"),
        pytest.param("string(10 / claims.n)", {"n": 0}, "it cannot be evaluated for this token", id="division by zero"),
        pytest.param("claims.a", {"a": "\udc80"}, "it cannot be evaluated for this token", id="a text that is none"),
        pytest.param("claims.a", {"a": 10**400}, "it cannot be evaluated", id="a number that no float holds"),
        pytest.param("dyn(optional.of(claims.a))", {"a": "secret"}, "it cannot be evaluated", id="what JSON has not"),
        pytest.param(
            "claims.l.map(a, claims.l.map(b, claims.l.map(c, claims.l.map(d, 'x').join()).join()).join()).join()",
            {"l": ["x"] * 100},
            "it cannot be evaluated for this token",
            id="more steps than anybody needs",
        ),
    ],
)
def test_evaluation_that_gives_nothing_says_why_without_values(text: str, claims: dict[str, Any], why: str) -> None:
    with pytest.raises(CelFailedError) as failed:
        given_by(text, claims)
    assert why in str(failed.value)
    assert "secret" not in str(failed.value)


LONG = ["a"] * (MAX_ELEMENTS + 1)


@pytest.mark.parametrize(
    ("text", "claims"),
    [
        pytest.param("claims.a.map(x, 'b' + x)", {"a": LONG}, id="a list"),
        pytest.param("claims.a.filter (x, x != 'b')", {"a": LONG}, id="filtered"),
        pytest.param("claims.a.b.map(x, 'b')", {"a": {"b": LONG}}, id="inside a map"),
        pytest.param("claims.a.map(x, 'b')", {"a": dict.fromkeys(map(str, range(MAX_ELEMENTS + 1)), 1)}, id="a map"),
        pytest.param("claims.map(x, 'b')", {"a": LONG}, id="all claims"),
        pytest.param("claims.a.split(',').map(x, 'b' + x)", {"a": "," * (MAX_SPLIT + 1)}, id="a text that is split"),
    ],
)
def test_a_list_is_built_of_few_elements_only(text: str, claims: dict[str, Any]) -> None:
    with pytest.raises(CelFailedError, match="more elements than `map` and `filter` may have"):
        given_by(text, claims)


@pytest.mark.parametrize(
    ("text", "claims", "found"),
    [
        pytest.param(
            "claims.a.map(x, x)", {"a": LONG[1:], "b": LONG}, LONG[1:], id="just as many, and others not named"
        ),
        pytest.param("claims.a.split(',').map(x, x)", {"a": "ab" * MAX_SPLIT}, ["ab" * MAX_SPLIT], id="a long text"),
        pytest.param("claims.a", {"a": LONG}, LONG, id="nothing is built"),
    ],
)
def test_what_costs_little_is_evaluated(text: str, claims: dict[str, Any], found: Any) -> None:
    assert given_by(text, claims) == found


@pytest.mark.parametrize(
    ("text", "claims"),
    [
        pytest.param(
            "claims.a.exists(x, claims.b.split(',').size() == 7)", {"a": ["b"] * 300, "b": "," * 1000}, id="splits"
        ),
        pytest.param("claims.a.exists(x, claims['b'].contains(x))", {"a": ["b"] * 300, "b": "a" * 2000}, id="a text"),
        pytest.param("claims.a.all(x, !(x in claims.b))", {"a": ["b"] * 400, "b": ["a"] * 400}, id="looks up"),
        pytest.param("claims.a.all(x, !(x in claims.b.c))", {"a": ["b"] * 400, "b": {"c": ["a"] * 400}}, id="in a map"),
        pytest.param(
            "claims.a.split(',').all(x, claims.b.contains(x))", {"a": "," * 400, "b": "," * 400}, id="two texts"
        ),
        pytest.param("claims.a.replace('a', claims.b)", {"a": "a" * 10, "b": "b" * (MAX_FACTOR + 1)}, id="replaces"),
        pytest.param("claims.a.join(claims.b)", {"a": ["", ""], "b": "b" * (MAX_FACTOR + 1)}, id="joins"),
        pytest.param(
            "{'k': [claims.a.replace('a', claims.b)]}['k'][0]",
            {"a": "a", "b": "b" * (MAX_FACTOR + 1)},
            id="in a map's value",
        ),
    ],
)
def test_claims_that_are_combined_are_short(text: str, claims: dict[str, Any]) -> None:
    with pytest.raises(CelFailedError, match="the claims that it combines are too long"):
        compile_expression(text, CLAIMS, TRUTH | TEXTS).evaluate(claims)


@pytest.mark.parametrize(
    ("text", "claims", "found"),
    [
        pytest.param("claims.a.exists(x, x in claims.b)", {"a": LONG[:300], "b": ["b"] * 300}, False, id="300 in 300"),
        pytest.param(
            "claims.a.split(' ').exists(x, x in claims.b)", {"a": "a b " * 30, "b": ["read", "a"]}, True, id="scopes"
        ),
        pytest.param("claims.a.exists(x, x == claims.b)", {"a": [1, 2], "b": 2}, True, id="numbers"),
        pytest.param("claims.a.all(x, x.startsWith('a'))", {"a": ["a" * 5000] * 3}, True, id="nothing is read again"),
        pytest.param(
            "claims.a.replace('@' + claims.b, '')", {"a": "jane@example.com", "b": "example.com"}, "jane", id="a domain"
        ),
        pytest.param("claims.a.replace('a', 'b')", {"a": "a" * 5000}, "b" * 5000, id="a literal"),
    ],
)
def test_what_combines_short_claims_is_evaluated(text: str, claims: dict[str, Any], found: Any) -> None:
    assert compile_expression(text, CLAIMS, TRUTH | TEXTS).evaluate(claims) == found


@pytest.mark.parametrize(
    "text",
    [
        "claims.a.matches(claims.b)",
        "matches(claims.a, claims.b)",
        "claims.a.exists(x, claims.b.matches(x))",
        "claims.a.matches('^' + claims.b)",
    ],
)
def test_a_pattern_is_a_literal(text: str) -> None:
    with pytest.raises(CelError, match="the pattern of matches must be a literal"):
        compile_expression(text, CLAIMS, TRUTH)
    assert compile_expression("claims.a.matches('^b+$') && matches(claims.a, 'b')", CLAIMS, TRUTH).evaluate({"a": "b"})


def test_claims_that_nest_deeper_than_the_stack_give_nothing() -> None:
    tower: list[Any] = []
    for _ in range(5000):
        tower = [tower]
    with pytest.raises(CelFailedError, match="it cannot be evaluated for this token"):
        given_by("claims.sub", {"sub": "jane", "tower": tower})


@pytest.mark.parametrize(
    ("text", "names"),
    [
        pytest.param("claims.email", {"email"}, id="a member"),
        pytest.param("(claims).email", {"email"}, id="behind parentheses"),
        pytest.param("claims.?email.orValue('')", {"email"}, id="optional"),
        pytest.param("claims['email'] + claims[?'name'].orValue('')", {"email", "name"}, id="by name"),
        pytest.param("has(claims.email) ? 'a' : claims.b", {"email", "b"}, id="asked for"),
        pytest.param("{'a': claims.email}['a']", {"email"}, id="in a map"),
        pytest.param("{claims.email: 'a'}['a']", {"email"}, id="as the key of a map"),
        pytest.param("[claims.a, claims.b][0]", {"a", "b"}, id="in a list"),
        pytest.param("['x'].exists(c, c == claims.email) ? 'a' : 'b'", {"email"}, id="in a loop"),
        pytest.param("claims[claims.which]", {"which"}, id="a name that only the claims can tell"),
        pytest.param("claims.a.b.email", {"a"}, id="a member of a member is another thing"),
        pytest.param("claims.a['email']", {"a"}, id="and so by name"),
        pytest.param("'claims.email'", set(), id="in a text"),
    ],
)
def test_which_claims_an_expression_names(text: str, names: set[str]) -> None:
    assert compile_expression(text, CLAIMS, TEXT).names == names


def test_expressions_are_equal_by_text_and_variable_and_print_themselves() -> None:
    one, same = (compile_expression("claims.sub", CLAIMS, TEXT) for _ in range(2))
    other = compile_expression("claims.name", CLAIMS, TEXT)
    assert one == same
    assert hash(one) == hash(same)
    assert one != other
    assert one != "claims.sub"
    assert repr(one) == "Expression('claims.sub')"


def test_without_the_library_an_expression_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def no_library(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("cel_expr_python"):
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", no_library)
    with pytest.raises(CelError, match=r"pip install 'mooring\[cel\]'"):
        compile_expression("unused.sub", "unused", TEXT)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)
SOME: list[Expression] = [
    compile_expression(text, CLAIMS, wanted)
    for text, wanted in (
        ("claims.a", TEXT),
        ("claims.?a.orValue(claims.?b.orValue('c'))", TEXTS),
        ("claims.a.map(x, string(x))", TEXTS),
        ("claims.a == claims.b", TRUTH),
    )
]


@given(st.dictionaries(st.sampled_from(["a", "b"]), JSON), st.sampled_from(SOME))
def test_any_claims_give_a_value_or_a_refusal(claims: dict[str, Any], expression: Expression) -> None:
    with contextlib.suppress(CelFailedError):
        expression.evaluate(claims)


@given(st.text(max_size=60) | st.text("claims.?orValue()[]'\"!&|=xyz 19", max_size=60))
def test_any_text_is_an_expression_or_refused(text: str) -> None:
    with contextlib.suppress(CelError):
        assert compile_expression(text, CLAIMS, TEXTS).text == text
