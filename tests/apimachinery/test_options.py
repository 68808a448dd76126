"""Request options.

Source: docs/protocol/lists.md, docs/protocol/watch.md, docs/protocol/patches.md, docs/protocol/requests.md#options.
"""

from __future__ import annotations

import base64
import json
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.apimachinery.options import IGNORE_STORE_READ_ERROR as IGNORE
from mooring.apimachinery.options import (
    INCONSISTENT,
    MAX_CONTINUE,
    DeleteOptions,
    GetOptions,
    ListOptions,
    WriteOptions,
    decode_continue,
    default_field_manager,
    encode_continue,
    parse_delete_options,
    parse_get_options,
    parse_list_options,
    parse_timeout,
    parse_write_options,
)
from mooring.errors import ApiError, BadRequestError, InvalidError


def query(text: str) -> dict[str, list[str]]:
    """`a=1&b=2&a=3`, nothing escaped."""
    found: dict[str, list[str]] = {}
    for part in filter(None, text.split("&")):
        key, _, value = part.partition("=")
        found.setdefault(key, []).append(value)
    return found


def test_no_parameters_are_the_defaults() -> None:
    assert parse_list_options({}) == ListOptions()
    assert parse_list_options({"unknown": ["x"]}) == ListOptions()
    assert parse_get_options({}) == GetOptions()
    assert parse_write_options({}) == WriteOptions()
    assert parse_delete_options({}) == DeleteOptions()
    assert parse_delete_options({}, {}) == DeleteOptions()
    assert parse_delete_options({"unknown": ["x"]}) == DeleteOptions()


def test_every_list_parameter_is_read() -> None:
    options = parse_list_options(
        query(
            "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=1&resourceVersion=12"
            "&timeoutSeconds=9&limit=5&labelSelector=a&fieldSelector=b=c"
        )
    )
    assert options.watch
    assert options.allow_bookmarks
    assert options.send_initial_events is True
    assert (options.match, options.resource_version, options.revision) == ("NotOlderThan", "12", 12)
    assert (options.timeout_seconds, options.limit) == (9, 5)
    assert (str(options.label_selector), str(options.field_selector)) == ("a", "b=c")


@pytest.mark.parametrize(
    ("text", "exact"),
    [
        ("", False),
        ("limit=5", False),
        ("resourceVersion=0&limit=5", False),
        ("resourceVersion=7", False),
        ("resourceVersion=7&limit=5", True),
        ("resourceVersion=7&resourceVersionMatch=Exact", True),
        ("resourceVersion=7&limit=5&resourceVersionMatch=NotOlderThan", False),
    ],
)
def test_a_revision_with_a_limit_and_no_match_is_exact(text: str, exact: bool) -> None:
    assert parse_list_options(query(text)).exact is exact


@pytest.mark.parametrize(("text", "limit"), [("limit=0", 0), ("limit=-5", 0), ("limit=", 0), ("limit=+3", 3)])
def test_a_limit_below_one_is_no_limit(text: str, limit: int) -> None:
    assert parse_list_options(query(text)).limit == limit


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("limit=x", 'strconv.ParseInt: parsing "x": invalid syntax'),
        ("limit=9223372036854775808", 'strconv.ParseInt: parsing "9223372036854775808": value out of range'),
        ("timeoutSeconds=1.5", 'strconv.ParseInt: parsing "1.5": invalid syntax'),
        (
            "resourceVersion=01",
            'invalid resource version: resourceVersion: Invalid value: "01": strconv.ParseUint: parsing "01": invalid syntax',
        ),
        (
            "resourceVersion=9999999999999999999",
            'invalid resource version: resourceVersion: Invalid value: "9999999999999999999": '
            'strconv.ParseUint: parsing "9999999999999999999": value out of range',
        ),
        ("resourceVersion=5&continue=x", "specifying resource version is not allowed when using continue"),
        ("labelSelector=a,", "found '', expected: identifier after ','"),
        ("fieldSelector=a", "invalid selector: 'a'; can't understand 'a'"),
    ],
)
def test_what_cannot_be_read_is_a_bad_request(text: str, message: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        parse_list_options(query(text))
    assert str(caught.value) == message


NOT_WATCH = (
    "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
)
CONTINUES = "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden when continue is provided"
NEEDS_MATCH = "resourceVersionMatch: Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "resourceVersionMatch=Exact",
            "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided",
        ),
        ("resourceVersionMatch=NotOlderThan&resourceVersion=0&continue=x", CONTINUES),
        (
            "resourceVersionMatch=x&resourceVersion=1",
            'resourceVersionMatch: Unsupported value: "x": supported values: "Exact", "NotOlderThan", ""',
        ),
        (
            "resourceVersionMatch=Exact&resourceVersion=0",
            'resourceVersionMatch: Forbidden: resourceVersionMatch "exact" is forbidden for resourceVersion "0"',
        ),
        ("sendInitialEvents=false", "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for list"),
        ("watch=1&sendInitialEvents=true", NEEDS_MATCH),
        ("watch=1&sendInitialEvents=false", NEEDS_MATCH),
        ("watch=1&resourceVersionMatch=NotOlderThan", NOT_WATCH),
        (
            "watch=1&resourceVersionMatch=Exact&sendInitialEvents=true",
            f'[{NEEDS_MATCH}, resourceVersionMatch: Unsupported value: "Exact": supported values: "NotOlderThan"]',
        ),
        ("watch=1&resourceVersionMatch=NotOlderThan&sendInitialEvents=true&continue=x", CONTINUES),
        ("watch=1&continue=x", CONTINUES),
        ("watch=1&continue=x&resourceVersion=0&resourceVersionMatch=", CONTINUES),
    ],
)
def test_parameters_that_do_not_go_together_are_invalid_list_options(text: str, message: str) -> None:
    with pytest.raises(InvalidError) as caught:
        parse_list_options(query(text))
    assert str(caught.value) == f'ListOptions.meta.k8s.io "" is invalid: {message}'
    assert caught.value.details.kind == "ListOptions"


@pytest.mark.parametrize(
    "text", ["resourceVersion=0&continue=x", "watch=1&resourceVersion=5&continue=x", "resourceVersion=0&watch=0"]
)
def test_what_goes_together_passes(text: str) -> None:
    assert parse_list_options(query(text)).resource_version in ("0", "5")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("", 60), ("timeout=", 60), ("timeout=0", 60), ("timeout=0s", 60), ("timeout=61s", 60), ("timeout=1.5s", 1.5)],
)
def test_a_timeout_is_at_most_and_by_default_a_minute(text: str, seconds: float) -> None:
    assert parse_timeout(query(text)) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("invalid", 'invalid timeout specified in the request URL - time: invalid duration "invalid"'),
        ("5", 'invalid timeout specified in the request URL - time: missing unit in duration "5"'),
    ],
)
def test_a_timeout_that_is_no_duration_is_a_bad_request(text: str, message: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        parse_timeout({"timeout": [text]})
    assert str(caught.value) == message


def test_every_write_parameter_is_read() -> None:
    options = parse_write_options(query("dryRun=All&fieldManager=kubectl&fieldValidation=Strict"))
    assert options == WriteOptions(dry_run=True, field_manager="kubectl", field_validation="Strict")


def test_an_apply_patch_may_be_forced() -> None:
    options = parse_write_options(query("fieldManager=m&force=true"), "PatchOptions", apply=True)
    assert options == WriteOptions(field_manager="m", force=True)


@pytest.mark.parametrize(
    ("text", "kind", "apply", "message"),
    [
        ("dryRun=some", "CreateOptions", False, 'dryRun: Unsupported value: ["some"]: supported values: "All"'),
        (
            "dryRun=All&dryRun=",
            "CreateOptions",
            False,
            'dryRun: Unsupported value: ["All",""]: supported values: "All"',
        ),
        (f"fieldManager={'x' * 129}", "UpdateOptions", False, "fieldManager: Too long: may not be more than 128 bytes"),
        (
            "fieldManager=a\x07",
            "UpdateOptions",
            False,
            'fieldManager: Invalid value: "a\\a": invalid character U+0007 (at position 1)',
        ),
        (
            "fieldValidation=strict",
            "CreateOptions",
            False,
            'fieldValidation: Unsupported value: "strict": supported values: "", "Ignore", "Strict", "Warn"',
        ),
        ("", "PatchOptions", True, "fieldManager: Required value: is required for apply patch"),
        ("force=1", "PatchOptions", False, "force: Forbidden: may not be specified for non-apply patch"),
    ],
)
def test_write_options_outside_the_rules_are_invalid(text: str, kind: str, apply: bool, message: str) -> None:
    with pytest.raises(InvalidError) as caught:
        parse_write_options(query(text), kind, apply=apply)
    assert str(caught.value) == f'{kind}.meta.k8s.io "" is invalid: {message}'


def test_a_field_manager_of_128_characters_is_allowed() -> None:
    assert parse_write_options({"fieldManager": ["x" * 128]}).field_manager == "x" * 128


@pytest.mark.parametrize(
    ("agent", "manager"),
    [("kubectl/v1.36 (linux)", "kubectl"), ("", ""), ("a\tb", "ab"), ("x" * 200, "x" * 128), ("/x", "")],
)
def test_a_nameless_manager_is_named_after_its_user_agent(agent: str, manager: str) -> None:
    assert default_field_manager(agent) == manager


@pytest.mark.parametrize(
    ("text", "body", "expected"),
    [
        ("gracePeriodSeconds=0", None, DeleteOptions(grace_period_seconds=0)),
        ("propagationPolicy=Foreground&dryRun=All", None, DeleteOptions(propagation="Foreground", dry_run=True)),
        ("orphanDependents=true", None, DeleteOptions(propagation="Orphan")),
        ("orphanDependents=false", None, DeleteOptions(propagation="Background")),
        ("", {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 5}, DeleteOptions(5)),
        ("", {"propagationPolicy": "Orphan"}, DeleteOptions(propagation="Orphan")),
        ("", {"orphanDependents": False}, DeleteOptions(propagation="Background")),
        ("", {"preconditions": {"uid": "u", "resourceVersion": "7"}}, DeleteOptions(uid="u", resource_version="7")),
        ("", {"preconditions": {"uid": "", "resourceVersion": ""}}, DeleteOptions(uid="", resource_version="")),
        (f"{IGNORE}=true", None, DeleteOptions(ignore_store_read_error=True)),
        ("", {IGNORE: True, "preconditions": {}, "dryRun": []}, DeleteOptions(ignore_store_read_error=True)),
        (f"{IGNORE}=true&dryRun=All", None, DeleteOptions(dry_run=True, ignore_store_read_error=True)),
        ("dryRun=All", {IGNORE: True}, DeleteOptions(dry_run=True, ignore_store_read_error=True)),
        ("gracePeriodSeconds=1", {IGNORE: False, "orphanDependents": True}, DeleteOptions(propagation="Orphan")),
        ("gracePeriodSeconds=-1", None, DeleteOptions(grace_period_seconds=1)),
        ("", {"gracePeriodSeconds": -5}, DeleteOptions(grace_period_seconds=1)),
        ("", {"dryRun": ["All"]}, DeleteOptions(dry_run=True)),
        ("dryRun=All&gracePeriodSeconds=9", {"gracePeriodSeconds": 1}, DeleteOptions(1, dry_run=True)),
        ("propagationPolicy=Orphan", {"kind": "DeleteOptions"}, DeleteOptions()),
    ],
)
def test_delete_options_come_from_the_body_or_else_the_query(
    text: str, body: dict[str, Any] | None, expected: DeleteOptions
) -> None:
    assert parse_delete_options(query(text), body) == expected


@pytest.mark.parametrize(
    ("text", "body", "message"),
    [
        (
            "propagationPolicy=Orphan&orphanDependents=true",
            None,
            'propagationPolicy: Invalid value: "Orphan": orphanDependents and deletionPropagation cannot be both set',
        ),
        (
            "propagationPolicy=orphan",
            None,
            'propagationPolicy: Unsupported value: "orphan": supported values: "Foreground", "Background", "Orphan", "nil"',
        ),
        (
            "",
            {"propagationPolicy": ""},
            'propagationPolicy: Unsupported value: "": supported values: "Foreground", "Background", "Orphan", "nil"',
        ),
        ("dryRun=x", None, 'dryRun: Unsupported value: ["x"]: supported values: "All"'),
        ("dryRun=x", {"gracePeriodSeconds": 1}, 'dryRun: Unsupported value: ["x"]: supported values: "All"'),
        *(
            (
                text,
                {IGNORE: True, **body},
                f"{IGNORE}: Invalid value: true: cannot be set together with .{name}",
            )
            for text, body, name in (
                ("", {"propagationPolicy": "Orphan"}, "propagationPolicy"),
                ("", {"orphanDependents": False}, "orphanDependents"),
                ("", {"gracePeriodSeconds": 0}, "gracePeriodSeconds"),
                ("", {"preconditions": {"uid": ""}}, "preconditions"),
            )
        ),
    ],
)
def test_delete_options_outside_the_rules_are_invalid(text: str, body: dict[str, Any] | None, message: str) -> None:
    with pytest.raises(InvalidError) as caught:
        parse_delete_options(query(text), body)
    assert str(caught.value) == f'DeleteOptions.meta.k8s.io "" is invalid: {message}'


@pytest.mark.parametrize(
    ("text", "body", "message"),
    [
        ("gracePeriodSeconds=x", None, 'strconv.ParseInt: parsing "x": invalid syntax'),
        ("", {"kind": "Secret"}, "the body of a DELETE is a DeleteOptions object"),
        ("", {"gracePeriodSeconds": "5"}, "gracePeriodSeconds of DeleteOptions has the wrong type"),
        ("", {"gracePeriodSeconds": True}, "gracePeriodSeconds of DeleteOptions has the wrong type"),
        ("", {"preconditions": []}, "preconditions of DeleteOptions has the wrong type"),
        ("", {"preconditions": {"uid": 1}}, "uid of DeleteOptions has the wrong type"),
        ("", {IGNORE: "true"}, f"{IGNORE} of DeleteOptions has the wrong type"),
        ("", {"dryRun": "All"}, "dryRun of DeleteOptions has the wrong type"),
        ("", {"dryRun": [{}]}, "dryRun of DeleteOptions has the wrong type"),
    ],
)
def test_delete_options_of_the_wrong_type_are_a_bad_request(
    text: str, body: dict[str, Any] | None, message: str
) -> None:
    with pytest.raises(BadRequestError) as caught:
        parse_delete_options(query(text), body)
    assert str(caught.value) == message


def token(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "it was not made by this server"),
        ("!", "it was not made by this server"),
        ("é", "it was not made by this server"),
        ("a" * 5, "it was not made by this server"),
        (token({"v": "meta.k8s.io/v1", "rv": "1", "start": "a"}), "it was not made by this server"),
        (token([]), "it was not made by this server"),
        (base64.urlsafe_b64encode(b'{"a":' + b"[" * 3000).decode().rstrip("="), "it was not made by this server"),
        ("a" * (MAX_CONTINUE + 1), "too long"),
        (token({"v": "v2", "rv": 1, "start": "a"}), "server does not recognize this encoded version v2"),
        (
            token({"v": "meta.k8s.io/v1", "rv": 0, "start": "a"}),
            "incorrect encoded start resourceVersion (meta.k8s.io/v1)",
        ),
        (
            token({"v": "meta.k8s.io/v1", "rv": -2, "start": "a"}),
            "incorrect encoded start resourceVersion (meta.k8s.io/v1)",
        ),
        (token({"v": "meta.k8s.io/v1", "rv": 1, "start": ""}), "encoded start key empty (meta.k8s.io/v1)"),
        (token({"v": "meta.k8s.io/v1", "rv": 1, "start": "../b"}), "../b"),
        (token({"v": "meta.k8s.io/v1", "rv": 1, "start": "a/./b"}), "a/./b"),
        (token({}), "server does not recognize this encoded version "),
    ],
)
def test_a_tampered_continue_token_is_a_bad_request(text: str, why: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        decode_continue(text)
    assert str(caught.value) == f"invalid continue token: continue key is not valid: {why}"


def test_a_continue_token_looks_like_kube_apiservers() -> None:
    decoded = base64.urlsafe_b64decode(encode_continue("ns/name\0", 7) + "==")
    assert decoded == b'{"v":"meta.k8s.io/v1","rv":7,"start":"ns/name\\u0000"}'
    assert decode_continue(encode_continue("a", INCONSISTENT)) == ("a", INCONSISTENT)


@given(
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=100).filter(
        lambda key: {".", ".."}.isdisjoint(key.split("/"))
    ),
    st.integers(1, 2**63 - 1),
)
def test_decoding_an_encoded_token_gives_it_back(start: str, revision: int) -> None:
    assert decode_continue(encode_continue(start, revision)) == (start, revision)


@given(
    st.one_of(st.text(max_size=60), st.binary(max_size=60).map(lambda data: base64.urlsafe_b64encode(data).decode()))
)
def test_a_junk_token_is_never_more_than_a_bad_request(text: str) -> None:
    with pytest.raises(BadRequestError):
        decode_continue(text)


PARAMETERS = [
    "limit", "continue", "resourceVersion", "resourceVersionMatch", "labelSelector", "fieldSelector", "watch", "timeoutSeconds",
    "sendInitialEvents", "timeout", "dryRun", "fieldManager", "fieldValidation", "force", "gracePeriodSeconds",
    "propagationPolicy", "orphanDependents", IGNORE,
]  # fmt: skip


@given(st.dictionaries(st.sampled_from(PARAMETERS), st.lists(st.text(max_size=10), max_size=2)))
def test_junk_parameters_are_never_more_than_refused(asked: dict[str, list[str]]) -> None:
    for parse in (parse_list_options, parse_get_options, parse_write_options, parse_delete_options, parse_timeout):
        try:
            parse(asked)
        except ApiError:
            continue
