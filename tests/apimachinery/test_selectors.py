"""Label and field selectors.

Source: docs/protocol/selectors.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.apimachinery.selectors import (
    EVERY_FIELD,
    EVERY_LABEL,
    MAX_REQUIREMENTS,
    MAX_SELECTOR,
    FieldSelector,
    FieldTerm,
    LabelSelector,
    Requirement,
    check_field_labels,
    label_selector_from_object,
    parse_field_selector,
    parse_label_selector,
)
from mooring.errors import ApiError, BadRequestError
from tests.support.work import Word, work


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("", ""),
        ("  ", ""),
        ("a", "a"),
        ("!a", "!a"),
        (" ! a ", "!a"),
        ("a=b", "a=b"),
        ("a == b", "a==b"),
        ("a!=b", "a!=b"),
        ("a=", "a="),
        ("a=,b!=", "a=,b!="),
        ("z,a", "a,z"),
        ("a in (c,b , c)", "a in (b,c)"),
        ("a notin(b)", "a notin (b)"),
        ("a in (,)", "a in (,)"),
        ("a in (,b)", "a in (,b)"),
        ("a in (b,)", "a in (,b)"),
        ("a in (b,,c)", "a in (,b,c)"),
        ("in in (in,notin)", "in in (in,notin)"),
        ("notin", "notin"),
        ("a=in", "a=in"),
        ("a>1,b < 2", "a>1,b<2"),
        ("k8s.io/a=b\t,\r\nc", "c,k8s.io/a=b"),
    ],
)
def test_a_label_selector_is_read_and_written_canonically(text: str, canonical: str) -> None:
    selector = parse_label_selector(text)
    assert str(selector) == canonical
    assert parse_label_selector(canonical) == selector
    assert selector.empty == (canonical == "")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (",", "found ',', expected: !, identifier, or 'end of string'"),
        ("=b", "found '=', expected: !, identifier, or 'end of string'"),
        ("a,", "found '', expected: identifier after ','"),
        ("a,,b", "found ',', expected: identifier after ','"),
        ("a b", "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt"),
        ("a=b c", "found 'c', expected: ',' or 'end of string'"),
        ("!a=b", "found '=', expected: ',' or 'end of string'"),
        ("!", "unable to parse requirement: found '', expected: identifier"),
        ("!!a", "unable to parse requirement: found '!', expected: identifier"),
        ("a=(b)", "unable to parse requirement: found '(', expected: identifier"),
        ("a===b", "unable to parse requirement: found '=', expected: identifier"),
        ("a in b", "unable to parse requirement: found 'b' expected: '('"),
        ("a in (b", "unable to parse requirement: found '', expected: ',' or ')'"),
        ("a in (b c)", "unable to parse requirement: found 'c', expected: ',' or ')'"),
        ("a in (=)", "unable to parse requirement: found '=', expected: ',', ')' or identifier"),
        ("a in (b,=)", "unable to parse requirement: found '=', expected: ',', or identifier"),
        (
            "a in ()",
            "unable to parse requirement: values: Invalid value: []: for 'in', 'notin' operators, values set can't be empty",
        ),
        (
            "a>b",
            "unable to parse requirement: values[0]: Invalid value: \"b\": for 'Gt', 'Lt' operators, the value must be an integer",
        ),
        (
            "a>9223372036854775808",
            'unable to parse requirement: values[0]: Invalid value: "9223372036854775808": '
            "for 'Gt', 'Lt' operators, the value must be an integer",
        ),
    ],
)
def test_a_malformed_label_selector_names_the_expected_token(text: str, message: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        parse_label_selector(text)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("text", "begins"),
    [
        ("a/b/c=d", 'unable to parse requirement: <nil>: Invalid value: "a/b/c": '),
        ("-a", 'unable to parse requirement: <nil>: Invalid value: "-a": '),
        ("a=-b", 'unable to parse requirement: values[0][a]: Invalid value: "-b": '),
        ("a in (b,c/d)", 'unable to parse requirement: values[1][a]: Invalid value: "c/d": '),
    ],
)
def test_keys_and_values_obey_the_rules_for_labels(text: str, begins: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        parse_label_selector(text)
    assert str(caught.value).startswith(begins)


@pytest.mark.parametrize(
    ("text", "labels", "matches"),
    [
        ("", {}, True),
        ("a", {"a": ""}, True),
        ("a", {}, False),
        ("!a", {}, True),
        ("!a", {"a": ""}, False),
        ("a=b", {"a": "b"}, True),
        ("a=b", {"a": "c"}, False),
        ("a=b", {}, False),
        ("a=", {}, False),
        ("a=", {"a": ""}, True),
        ("a!=b", {}, True),
        ("a!=b", {"a": "c"}, True),
        ("a!=b", {"a": "b"}, False),
        ("a in (b,c)", {"a": "c"}, True),
        ("a in (b,c)", {"a": "d"}, False),
        ("a notin (b,c)", {}, True),
        ("a notin (b,c)", {"a": "c"}, False),
        ("a>5", {"a": "6"}, True),
        ("a>5", {"a": "5"}, False),
        ("a<5", {"a": "4"}, True),
        ("a<5", {"a": "5"}, False),
        ("a>5", {"a": "x"}, False),
        ("a>5", {}, False),
        ("a=b,c", {"a": "b"}, False),
        ("a=b,c", {"a": "b", "c": "d"}, True),
    ],
)
def test_labels_match_as_in_go(text: str, labels: dict[str, str], matches: bool) -> None:
    assert parse_label_selector(text).matches(labels) is matches


def test_a_selector_lists_each_of_its_keys_once() -> None:
    assert parse_label_selector("b,a=1,a!=2").labels() == ("a", "b")
    assert parse_field_selector("b=1,a=2,b!=3").labels() == ("b", "a")


@pytest.mark.parametrize(
    ("obj", "canonical"),
    [
        ({}, ""),
        ({"matchLabels": None, "matchExpressions": None}, ""),
        ({"matchLabels": {"b": "2", "a": "1"}}, "a=1,b=2"),
        ({"matchExpressions": [{"key": "a", "operator": "In", "values": ["c", "b"]}]}, "a in (b,c)"),
        ({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["b"]}]}, "a notin (b)"),
        ({"matchExpressions": [{"key": "a", "operator": "Exists"}]}, "a"),
        ({"matchExpressions": [{"key": "a", "operator": "DoesNotExist", "values": []}]}, "!a"),
    ],
)
def test_a_label_selector_object_becomes_a_selector(obj: dict[str, Any], canonical: str) -> None:
    assert str(label_selector_from_object(obj)) == canonical


@pytest.mark.parametrize(
    ("obj", "message"),
    [
        ({"matchLabels": [1]}, "a label selector has matchLabels (an object) and matchExpressions (a list)"),
        ({"matchExpressions": {"a": 1}}, "a label selector has matchLabels (an object) and matchExpressions (a list)"),
        ({"matchLabels": {"a": 1}}, "keys and values of a label selector are strings"),
        ({"matchExpressions": [{"operator": "Exists"}]}, "keys and values of a label selector are strings"),
        ({"matchExpressions": [{"key": "a", "operator": "in"}]}, '"in" is not a valid label selector operator'),
        ({"matchExpressions": [{"key": "a", "operator": [1]}]}, '"" is not a valid label selector operator'),
        ({"matchExpressions": ["a"]}, '"" is not a valid label selector operator'),
        (
            {"matchExpressions": [{"key": "a", "operator": "In", "values": "b"}]},
            "values of a label selector requirement are a list of strings",
        ),
        (
            {"matchExpressions": [{"key": "a", "operator": "In", "values": []}]},
            "values: Invalid value: []: for 'in', 'notin' operators, values set can't be empty",
        ),
        (
            {"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]},
            "values: Invalid value: values set must be empty for exists and does not exist",
        ),
    ],
)
def test_a_malformed_label_selector_object_is_refused(obj: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        label_selector_from_object(obj)
    assert str(caught.value) == message


KEYS = st.from_regex(r"[a-z]([-a-z0-9_.]{0,8}[a-z0-9])?(/[A-Za-z0-9]{1,8})?", fullmatch=True).filter(
    lambda key: "/" not in key or ("_" not in key and ".." not in key and "-." not in key and ".-" not in key)
)
VALUES = st.from_regex(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,8}[A-Za-z0-9])?)?", fullmatch=True)
REQUIREMENTS = st.one_of(
    st.builds(Requirement, KEYS, st.sampled_from(["exists", "!"])),
    st.builds(Requirement, KEYS, st.sampled_from(["=", "==", "!="]), st.tuples(VALUES)),
    st.builds(Requirement, KEYS, st.sampled_from([">", "<"]), st.integers(0, 2**62).map(lambda n: (str(n),))),
    st.builds(
        Requirement,
        KEYS,
        st.sampled_from(["in", "notin"]),
        st.sets(VALUES, min_size=1, max_size=4).map(lambda values: tuple(sorted(values))),
    ),
)
LABEL_SELECTORS = st.lists(REQUIREMENTS, max_size=5).map(
    lambda items: LabelSelector(tuple(sorted(items, key=lambda item: item.key)))
)


@given(LABEL_SELECTORS)
def test_parsing_a_printed_label_selector_gives_it_back(selector: LabelSelector) -> None:
    assert parse_label_selector(str(selector)) == selector


@given(st.one_of(st.text(max_size=40), st.text(alphabet="ab=!(),>< in\\-/", max_size=40)))
def test_junk_is_never_more_than_a_bad_request(text: str) -> None:
    for parse in (parse_label_selector, parse_field_selector):
        try:
            selector = parse(text)
        except ApiError:
            continue
        assert parse(str(selector)) == selector
        selector.matches({})


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=8,
)


@given(st.fixed_dictionaries({}, optional={"matchLabels": JSON, "matchExpressions": JSON}))
def test_a_junk_object_is_never_more_than_a_bad_request(obj: dict[str, Any]) -> None:
    try:
        label_selector_from_object(obj)
    except ApiError:
        return


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("", ""),
        (",,", ""),
        ("a=b", "a=b"),
        ("a==b", "a=b"),
        ("a!=b", "a!=b"),
        ("a=", "a="),
        ("metadata.name=x,type!=y", "metadata.name=x,type!=y"),
        ("a=b\\,c\\=d\\\\e", "a=b\\,c\\=d\\\\e"),
        ("a=\\=b", "a=\\=b"),
    ],
)
def test_a_field_selector_is_read_and_written_canonically(text: str, canonical: str) -> None:
    selector = parse_field_selector(text)
    assert str(selector) == canonical
    assert selector.empty == (canonical == "")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a", "invalid selector: 'a'; can't understand 'a'"),
        ("a=b,c", "invalid selector: 'a=b,c'; can't understand 'c'"),
        ("a=b=c", "invalid field selector: unescaped character in value: 61"),
        ("a===b", "invalid field selector: unescaped character in value: 61"),
        ("a=\\x", "invalid field selector: invalid escape sequence: \\x"),
        ("a=b\\", "invalid field selector: invalid escape sequence: \\"),
    ],
)
def test_a_malformed_field_selector_is_refused(text: str, message: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        parse_field_selector(text)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("text", "fields", "matches"),
    [
        ("", {}, True),
        ("a=b", {"a": "b"}, True),
        ("a=b", {"a": "c"}, False),
        ("a=", {}, True),
        ("a!=b", {}, True),
        ("a!=b", {"a": "b"}, False),
        ("a=b,c=d", {"a": "b", "c": "d"}, True),
        ("a=b,c=d", {"a": "b"}, False),
        ("a=x\\,y", {"a": "x,y"}, True),
    ],
)
def test_fields_match_as_in_go(text: str, fields: dict[str, str], matches: bool) -> None:
    assert parse_field_selector(text).matches(fields) is matches


def test_only_an_equal_term_pins_a_value() -> None:
    selector = parse_field_selector("a!=x,b=y,b=z")
    assert (selector.requires("a"), selector.requires("b"), selector.requires("c")) == (None, "y", None)


def test_a_field_selector_is_renamed_where_another_label_is_known() -> None:
    selector = parse_field_selector("regarding.name=a\\,b,type!=Warning,metadata.name=e")
    renamed = selector.renamed({"regarding.name": "involvedObject.name", "type": "type", "reason": "unused"})
    assert str(renamed) == "involvedObject.name=a\\,b,type!=Warning,metadata.name=e"


def test_an_unknown_field_label_is_refused_in_upstream_words() -> None:
    selector = parse_field_selector("metadata.name=a,metadata.namespace=n,spec.x=b")
    with pytest.raises(BadRequestError, match=r"^field label not supported: spec\.x$"):
        check_field_labels(selector, ("spec.y",))
    with pytest.raises(
        BadRequestError,
        match=r'^"spec\.x" is not a known field selector: only "metadata\.name", "metadata\.namespace"$',
    ):
        check_field_labels(selector, ())
    check_field_labels(selector, ("spec.x",))


@given(
    st.lists(
        st.builds(FieldTerm, st.from_regex(r"[a-zA-Z.]{1,10}", fullmatch=True), st.text(max_size=8), st.booleans()),
        max_size=4,
    )
)
def test_parsing_a_printed_field_selector_gives_it_back(terms: list[FieldTerm]) -> None:
    selector = FieldSelector(tuple(terms))
    assert parse_field_selector(str(selector)) == selector


def test_the_empty_selectors_match_everything() -> None:
    assert EVERY_LABEL.matches({"a": "b"})
    assert EVERY_FIELD.matches({"a": "b"})


@pytest.mark.parametrize("parse", [parse_label_selector, parse_field_selector])
def test_a_selector_has_a_bounded_number_of_requirements(parse: Callable[[str], LabelSelector | FieldSelector]) -> None:
    terms = [f"a{index}=b" for index in range(MAX_REQUIREMENTS + 1)]
    parse(",".join(terms[:-1]))
    with pytest.raises(BadRequestError, match="at most 100 requirements"):
        parse(",".join(terms))


@pytest.mark.parametrize("parse", [parse_label_selector, parse_field_selector])
def test_a_selector_has_a_bounded_length(parse: Callable[[str], LabelSelector | FieldSelector]) -> None:
    with pytest.raises(BadRequestError, match="at most 16384 characters"):
        parse("a=" + "b" * (MAX_SELECTOR - 1))


def test_a_set_of_values_is_one_requirement_and_searched_at_once() -> None:
    def compare(size: int) -> Callable[[], bool]:
        requirement = Requirement("a", "in", tuple(Word(f"v{index}") for index in range(size)))
        return lambda: requirement.matches({"a": "none"})

    assert work(compare(1000)) == work(compare(10))


@pytest.mark.parametrize("parse", [parse_label_selector, parse_field_selector])
def test_a_long_selector_is_refused_unread(parse: Callable[[str], LabelSelector | FieldSelector]) -> None:
    assert work(lambda: parse("a=b," * 15_000)) < 50
