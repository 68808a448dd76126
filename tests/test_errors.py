"""Errors print the sentences of Kubernetes.

Source: docs/protocol/errors.md.
"""

from __future__ import annotations

from typing import Any

import pytest

from mooring import errors
from mooring.errors import ApiError, Cause, Details, FieldError, InvalidError


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (errors.invalid("spec.a", "x", "must be y"), 'spec.a: Invalid value: "x": must be y'),
        (errors.invalid("spec.a", 'q"\\\n', "no"), 'spec.a: Invalid value: "q\\"\\\\\\n": no'),
        (errors.invalid("spec.a", "\x1b", "no"), r'spec.a: Invalid value: "\x1b": no'),
        (errors.invalid("spec.a", "é\u200b", "no"), r'spec.a: Invalid value: "é\u200b": no'),
        (errors.invalid("spec.a", "\U000e0001", "no"), r'spec.a: Invalid value: "\U000e0001": no'),
        (errors.invalid("spec.a", None, "no"), "spec.a: Invalid value: null: no"),
        (errors.invalid("spec.a", True, ""), "spec.a: Invalid value: true"),
        (errors.invalid("spec.a", False, ""), "spec.a: Invalid value: false"),
        (errors.invalid("spec.a", 7, ""), "spec.a: Invalid value: 7"),
        (errors.invalid("spec.a", 1.5, ""), "spec.a: Invalid value: 1.5"),
        (errors.invalid("spec.a", ["x", 1], ""), 'spec.a: Invalid value: ["x",1]'),
        (errors.invalid("spec.a", {"x": "ä"}, ""), 'spec.a: Invalid value: {"x":"ä"}'),
        (errors.invalid("spec.a", b"x", ""), "spec.a: Invalid value: \"b'x'\""),
        (errors.required("spec.a"), "spec.a: Required value"),
        (errors.required("spec.a", "give one"), "spec.a: Required value: give one"),
        (errors.duplicate("spec.a", "x"), 'spec.a: Duplicate value: "x"'),
        (errors.not_supported("a", "x", ["y", "z"]), 'a: Unsupported value: "x": supported values: "y", "z"'),
        (errors.forbidden("spec.a", "no"), "spec.a: Forbidden: no"),
        (errors.too_long("spec.a", 5), "spec.a: Too long: may not be more than 5 bytes"),
        (FieldError("FieldValueTooMany", "a", "at most 2", [1]), "a: Too many: at most 2"),
        (FieldError("FieldValueNotFound", "a", "", "x"), 'a: Not found: "x"'),
        (FieldError("FieldValueTypeInvalid", "a", "no", "x"), 'a: Invalid value: "x": no'),
    ],
    ids=str,
)
def test_text_of_a_field_error(error: FieldError, text: str) -> None:
    assert str(error) == text
    assert error.body == text.partition(": ")[2]


@pytest.mark.parametrize(
    ("error", "message", "details"),
    [
        (
            errors.NotFoundError.of("", "secrets", "a"),
            'secrets "a" not found',
            Details(name="a", kind="secrets"),
        ),
        (
            errors.AlreadyExistsError.of("g.io", "things", "a"),
            'things.g.io "a" already exists',
            Details(name="a", group="g.io", kind="things"),
        ),
        (
            errors.ConflictError.of("", "secrets", "a", errors.STALE),
            f'Operation cannot be fulfilled on secrets "a": {errors.STALE}',
            Details(name="a", kind="secrets"),
        ),
        (
            errors.ForbiddenError.of("", "secrets", "a", "no"),
            'secrets "a" is forbidden: no',
            Details(name="a", kind="secrets"),
        ),
        (errors.ForbiddenError.of("", "secrets", "", "no"), "secrets is forbidden: no", Details(kind="secrets")),
        (
            InvalidError.of("", "Secret", "a", [errors.required("x")]),
            'Secret "a" is invalid: x: Required value',
            Details(name="a", kind="Secret", causes=(Cause("FieldValueRequired", "Required value", "x"),)),
        ),
        (errors.UnauthorizedError(), "Unauthorized", Details()),
        (
            errors.TooManyRequestsError(retry_after=5),
            "Too many requests, please try again later.",
            Details(retry_after=5),
        ),
        (errors.BadRequestError("no"), "no", Details()),
    ],
    ids=lambda value: value.reason if isinstance(value, ApiError) else "",
)
def test_details_name_the_object(error: ApiError, message: str, details: Details) -> None:
    assert (error.message, str(error), error.details) == (message, message, details)


def test_several_field_errors_are_bracketed() -> None:
    error = InvalidError.of("g", "Thing", "a", [errors.required("x"), errors.forbidden("y", "no")])
    assert error.message == 'Thing.g "a" is invalid: [x: Required value, y: Forbidden: no]'
    assert len(error.details.causes) == 2


def test_of_many_field_errors_the_first_are_listed() -> None:
    error = InvalidError.of(
        "g", "Thing", "a", [errors.required(f"x{number}") for number in range(errors.MAX_FIELD_ERRORS + 3)]
    )
    assert error.message.startswith('Thing.g "a" is invalid: [x0: Required value, x1: Required value, ')
    assert error.message.endswith(f"x{errors.MAX_FIELD_ERRORS - 1}: Required value, and 3 more]")
    assert len(error.details.causes) == errors.MAX_FIELD_ERRORS


def test_of_many_objects_that_cannot_be_read_the_first_are_listed() -> None:
    problems = [(f"/registry/secrets/{number}", "no key") for number in range(errors.MAX_READ_ERRORS + 1)]
    error = errors.StorageReadError.of("", "secrets", problems)
    assert error.message == (
        'failed to read one or more secrets from the storage: unable to transform key "/registry/secrets/0": no key '
        f"(and {errors.MAX_READ_ERRORS} more)"
    )
    *listed, last = error.details.causes
    assert [cause.field for cause in listed] == [key for key, _ in problems[:-1]]
    assert (last.reason, last.field) == ("FieldValueTooMany", "")


def test_a_long_value_is_truncated_in_an_error() -> None:
    body = errors.invalid("x", ["y" * errors.MAX_QUOTED], "is too much").body
    assert body.endswith("yyy...: is too much")
    assert len(body) < errors.MAX_QUOTED + 100


def test_every_api_error_has_its_own_reason() -> None:
    classes: list[Any] = ApiError.__subclasses__()
    reasons = [found.reason for found in classes if found.__module__ == "mooring.errors"]
    assert all(reasons)
    assert len(set(reasons)) == len(reasons)


def test_an_expired_error_may_have_a_continue_token() -> None:
    assert errors.ExpiredError("too old", continue_token="abc").continue_token == "abc"
    assert errors.ExpiredError("too old").continue_token == ""


def test_a_verb_that_a_kind_does_not_have_is_named_with_the_kind_and_the_reason() -> None:
    """apimachinery's NewMethodNotSupported, and why."""
    assert errors.MethodNotAllowedError().message == "the server does not allow this method on the requested resource"
    found = errors.MethodNotAllowedError.not_supported("create", "apps", "deployments", "it is read-only")
    assert found.message == 'create is not supported on resources of kind "deployments.apps": it is read-only'
    assert found.details == errors.Details(group="apps", kind="deployments")
