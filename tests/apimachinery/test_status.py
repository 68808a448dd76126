"""Errors as Status.

Source: docs/protocol/authentication.md#unauthorized-and-forbidden, docs/protocol/errors.md.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.apimachinery.status import (
    CODES,
    error_of,
    forbidden_error,
    forbidden_message,
    resource_version_too_large,
    status_of,
    success_status,
)
from mooring.errors import (
    AlreadyExistsError,
    ApiError,
    BadRequestError,
    Cause,
    ConflictError,
    Details,
    ExpiredError,
    ForbiddenError,
    InternalServerError,
    InvalidError,
    NotAcceptableError,
    NotFoundError,
    RequestTimeoutError,
    RoutedNotAcceptableError,
    RoutedUnsupportedMediaTypeError,
    ServiceUnavailableError,
    StorageError,
    StorageReadError,
    TooManyRequestsError,
    UnauthorizedError,
    UnknownOutcomeError,
    UnsupportedMediaTypeError,
    required,
)


def reasons(root: type[ApiError] = ApiError) -> set[str]:
    return {error.reason for error in root.__subclasses__()}


def test_every_reason_of_an_error_has_a_code() -> None:
    assert reasons() <= CODES.keys()


@pytest.mark.parametrize(
    ("error", "code", "reason", "details"),
    [
        (NotFoundError.of("", "secrets", "a"), 404, "NotFound", {"name": "a", "kind": "secrets"}),
        (AlreadyExistsError.of("g", "roles", "a"), 409, "AlreadyExists", {"name": "a", "group": "g", "kind": "roles"}),
        (UnauthorizedError(), 401, "Unauthorized", None),
        (TooManyRequestsError(), 429, "TooManyRequests", {"retryAfterSeconds": 1}),
        (ExpiredError("x"), 410, "Expired", None),
        (NotAcceptableError("x"), 406, "NotAcceptable", None),
        (RoutedNotAcceptableError("x"), 406, "NotAcceptable", {}),
        (UnsupportedMediaTypeError("x"), 415, "UnsupportedMediaType", None),
        (RoutedUnsupportedMediaTypeError(), 415, "UnsupportedMediaType", {}),
        (
            StorageReadError.of("g", "roles", [("/registry/roles/a", "no key")]),
            500,
            "StorageReadError",
            {
                "name": "list",
                "group": "g",
                "kind": "roles",
                "causes": [
                    {
                        "reason": "UnexpectedServerResponse",
                        "message": "/registry/roles/a: no key",
                        "field": "/registry/roles/a",
                    }
                ],
            },
        ),
        (
            InvalidError.of("", "Secret", "a", [required("type", "say it")]),
            422,
            "Invalid",
            {
                "name": "a",
                "kind": "Secret",
                "causes": [{"reason": "FieldValueRequired", "message": "Required value: say it", "field": "type"}],
            },
        ),
        (
            resource_version_too_large(9, 5),
            504,
            "Timeout",
            {
                "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
                "retryAfterSeconds": 1,
            },
        ),
    ],
)
def test_an_api_error_becomes_its_status(error: ApiError, code: int, reason: str, details: Any) -> None:
    expected: dict[str, Any] = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": str(error),
    }
    expected |= {"reason": reason, "code": code} | ({} if details is None else {"details": details})
    assert status_of(error) == (code, expected)
    assert next(reversed(status_of(error)[1])) == "code"


def test_an_unauthorized_caller_learns_nothing() -> None:
    assert status_of(UnauthorizedError())[1]["message"] == "Unauthorized"


@pytest.mark.parametrize(
    ("error", "code", "reason"),
    [
        (StorageError("disk /secret/path is full"), 503, "ServiceUnavailable"),
        (UnknownOutcomeError("etcd at /secret/path does not answer"), 504, "Timeout"),
        (RuntimeError("secret"), 500, "InternalError"),
        (KeyError("secret"), 500, "InternalError"),
    ],
)
def test_other_errors_show_no_detail(error: Exception, code: int, reason: str) -> None:
    got, status = status_of(error)
    assert (got, status["reason"]) == (code, reason)
    assert "secret" not in str(status)


def test_an_error_without_reason_is_internal_and_names_none() -> None:
    code, status = status_of(ApiError("x"))
    assert (code, "reason" in status) == (500, False)


@pytest.mark.parametrize(
    ("revision", "metadata"), [(7, {"resourceVersion": "7"}), (0, {})], ids=["its revision", "a dry run"]
)
def test_a_finished_deletion_is_a_success(revision: int, metadata: dict[str, str]) -> None:
    assert success_status(Details(name="a", group="g", kind="roles", uid="u"), revision) == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": metadata,
        "status": "Success",
        "details": {"name": "a", "group": "g", "kind": "roles", "uid": "u"},
    }


@pytest.mark.parametrize(
    "error",
    [
        NotFoundError.of("", "secrets", "a"),
        ConflictError("c", Details("n", "g", "k", "u", (Cause("r", "m", "f"),), 3)),
        TooManyRequestsError("slow down", 7),
        UnauthorizedError(),
        StorageReadError.of("g", "roles", [("/registry/roles/a", "no key")]),
        resource_version_too_large(9, 5),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_survives_the_wire(error: ApiError) -> None:
    again = error_of(status_of(error)[1])
    assert (type(again), again.message, again.details) == (type(error), error.message, error.details)


@pytest.mark.parametrize(
    ("status", "expected", "message"),
    [
        ({"reason": "Gone", "message": "m"}, ExpiredError, "m"),
        ({"reason": "ServerTimeout", "message": "m"}, RequestTimeoutError, "m"),
        ({"reason": "New", "code": 404}, NotFoundError, "New"),
        ({"code": 409}, ConflictError, "the server answered with code 409"),
        ({"code": 500}, InternalServerError, "the server answered with code 500"),
        ({"code": 503}, ServiceUnavailableError, "the server answered with code 503"),
        (
            {"code": 410, "details": {"causes": [1, {}], "retryAfterSeconds": -1}},
            ExpiredError,
            "the server answered with code 410",
        ),
        ({"code": 599}, InternalServerError, "the server answered with code 599"),
        ({}, InternalServerError, "the server answered with code unknown"),
        (
            {"code": "x", "reason": 1, "message": [], "details": {"causes": 1}},
            InternalServerError,
            "the server answered with code unknown",
        ),
    ],
)
def test_a_status_is_read_by_reason_then_code(status: dict[str, Any], expected: type[ApiError], message: str) -> None:
    error = error_of(status)
    assert (type(error), error.message) == (expected, message)


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5), st.floats()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=6,
)


@given(st.fixed_dictionaries({}, optional={"reason": JSON, "code": JSON, "message": JSON, "details": JSON}))
def test_no_status_makes_reading_fail(status: dict[str, Any]) -> None:
    assert isinstance(error_of(status), ApiError)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (
            {"verb": "get", "resource": "secrets", "namespace": "x", "name": "y"},
            'secrets "y" is forbidden: User "u" cannot get resource "secrets" in API group "" in the namespace "x"',
        ),
        (
            {"verb": "list", "group": "rbac.authorization.k8s.io", "resource": "roles"},
            'roles.rbac.authorization.k8s.io is forbidden: User "u" cannot list resource "roles" '
            'in API group "rbac.authorization.k8s.io" at the cluster scope',
        ),
        (
            {
                "verb": "update",
                "resource": "nodes",
                "subresource": "status",
                "name": "n",
                "reason": "not yours & <mine>",
            },
            'nodes "n" is forbidden: User "u" cannot update resource "nodes/status" in API group "" at the cluster scope: '
            "not yours & <mine>",
        ),
        ({"verb": "get", "path": "/metrics"}, 'forbidden: User "u" cannot get path "/metrics"'),
        (
            {"verb": "get", "path": "/<b>&", "reason": "no"},
            'forbidden: User "u" cannot get path "/&lt;b&gt;&amp;": no',
        ),
    ],
)
def test_a_403_names_user_verb_and_target(asked: dict[str, str], message: str) -> None:
    error = forbidden_error(user="u", **asked)
    assert isinstance(error, ForbiddenError)
    assert error.message == message
    assert error.details == Details(
        name=asked.get("name", ""), group=asked.get("group", ""), kind=asked.get("resource", "")
    )


def test_names_in_a_403_are_quoted_and_escaped_once() -> None:
    assert forbidden_message(user='a"<b>', verb="get", path="/") == 'User "a\\"&lt;b&gt;" cannot get path "/"'


def test_a_bad_request_keeps_its_words() -> None:
    assert status_of(BadRequestError("say more"))[1]["message"] == "say more"


def test_an_expired_list_has_a_token_to_continue() -> None:
    code, status = status_of(ExpiredError("too old", continue_token="later"))
    assert (code, status["metadata"]) == (410, {"continue": "later"})
