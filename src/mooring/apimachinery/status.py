"""Status objects: HTTP codes of errors, conversion of errors both ways, and the message of 403.

Rules kept here:
* Only `CODES` maps a reason to an HTTP code.
* A Status has the message and details of an `ApiError`. It has nothing of any other error: storage errors are 503, all others 500,
  each with one fixed message.
* The message of 403 names user, verb and target. In it `&`, `<` and `>` are written `&amp;`, `&lt;`, `&gt;` here and only here.
  The reason of the authorizer is not escaped.
* A Status from a server becomes the `ApiError` of its reason, else of its code. Any input gives an error object.

Source: docs/protocol/authentication.md#unauthorized-and-forbidden, docs/protocol/errors.md; k8s.io/apimachinery pkg/api/errors.
"""

from __future__ import annotations

from typing import Any

from mooring.apimachinery.schema import Obj
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
    MethodNotAllowedError,
    NotAcceptableError,
    NotFoundError,
    RequestEntityTooLargeError,
    RequestTimeoutError,
    ServiceUnavailableError,
    StorageError,
    StorageReadError,
    TooManyRequestsError,
    UnauthorizedError,
    UnknownOutcomeError,
    UnsupportedMediaTypeError,
    quoted,
)

_CODE_OF: dict[type[ApiError], int] = {
    BadRequestError: 400,
    UnauthorizedError: 401,
    ForbiddenError: 403,
    NotFoundError: 404,
    MethodNotAllowedError: 405,
    NotAcceptableError: 406,
    AlreadyExistsError: 409,
    ConflictError: 409,
    ExpiredError: 410,
    RequestEntityTooLargeError: 413,
    UnsupportedMediaTypeError: 415,
    InvalidError: 422,
    TooManyRequestsError: 429,
    InternalServerError: 500,
    StorageReadError: 500,
    ServiceUnavailableError: 503,
    RequestTimeoutError: 504,
}
CODES = {error.reason: code for error, code in _CODE_OF.items()} | {"Gone": 410, "ServerTimeout": 500}
"""Reason → HTTP code."""
_ERRORS = {error.reason: error for error in _CODE_OF} | {"Gone": ExpiredError, "ServerTimeout": RequestTimeoutError}
_BY_CODE = {code: error for error, code in _CODE_OF.items() if error not in (AlreadyExistsError, StorageReadError)}
"""Errors by code, without those that share their code with a more general one."""

INTERNAL = "Internal error occurred: the request could not be completed"
UNKNOWN_OUTCOME = "the store did not confirm the write in time: it may or may not have been carried out"
UNAVAILABLE = "the server is currently unable to handle the request"


def status_of(error: BaseException) -> tuple[int, Obj]:
    """Return (HTTP code, Status) of any error. `retryAfterSeconds` in its details is also the value of the header Retry-After."""
    if isinstance(error, ApiError):
        shown = error
    elif isinstance(error, UnknownOutcomeError):
        shown = RequestTimeoutError(UNKNOWN_OUTCOME)
    elif isinstance(error, StorageError):
        shown = ServiceUnavailableError(UNAVAILABLE)
    else:
        # The operator finds the cause in the log. The client does not get it: it may hold paths or secrets.
        shown = InternalServerError(INTERNAL)
    code = CODES.get(shown.reason, 500)
    status: Obj = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {"continue": shown.continue_token}
        if isinstance(shown, ExpiredError) and shown.continue_token
        else {},
        "status": "Failure",
        "message": shown.message,
    }
    if shown.reason:
        status["reason"] = shown.reason
    details = _details(shown.details)
    if details or shown.shows_details:
        status["details"] = details
    status["code"] = code
    return code, status


def success_status(details: Details, revision: int) -> Obj:
    """Return the Status of a deletion that was finished at `revision`; 0 for a dry run."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {"resourceVersion": str(revision)} if revision else {},
        "status": "Success",
        "details": _details(details),
    }


def _details(details: Details) -> Obj:
    causes = [
        {
            name: text
            for name, text in (("reason", cause.reason), ("message", cause.message), ("field", cause.field))
            if text
        }
        for cause in details.causes
    ]
    shown = {
        "name": details.name,
        "group": details.group,
        "kind": details.kind,
        "uid": details.uid,
        "causes": causes,
        "retryAfterSeconds": details.retry_after,
    }
    return {name: value for name, value in shown.items() if value}


def error_of(status: Obj) -> ApiError:
    """Return the error of a Status from a server; an unknown reason and code become an InternalServerError."""
    reason, code, message = (
        _text_or_empty(status.get("reason")),
        status.get("code"),
        _text_or_empty(status.get("message")),
    )
    known = _ERRORS.get(reason) or (_BY_CODE.get(code) if isinstance(code, int) else None) or InternalServerError
    details = _read_details(status.get("details"))
    message = message or reason or f"the server answered with code {code if isinstance(code, int) else 'unknown'}"
    if known is UnauthorizedError:
        return UnauthorizedError()
    if known is TooManyRequestsError:
        return TooManyRequestsError(message, details.retry_after)
    return known(message, details)


def _text_or_empty(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _read_details(details: Any) -> Details:
    if not isinstance(details, dict):
        return Details()
    causes, retry = details.get("causes"), details.get("retryAfterSeconds")
    return Details(
        _text_or_empty(details.get("name")),
        _text_or_empty(details.get("group")),
        _text_or_empty(details.get("kind")),
        _text_or_empty(details.get("uid")),
        tuple(
            Cause(
                _text_or_empty(cause.get("reason")),
                _text_or_empty(cause.get("message")),
                _text_or_empty(cause.get("field")),
            )
            for cause in (causes if isinstance(causes, list) else ())
            if isinstance(cause, dict)
        ),
        retry if isinstance(retry, int) and retry > 0 else 0,
    )


def forbidden_message(
    *,
    user: str,
    verb: str,
    group: str = "",
    resource: str = "",
    subresource: str = "",
    namespace: str = "",
    path: str = "",
) -> str:
    """Return `User "u" cannot …` for a resource request, or for `path` without a `resource`. Escaped as in kube-apiserver."""
    if resource:
        target = f"{resource}/{subresource}" if subresource else resource
        where = f"in the namespace {quoted(namespace)}" if namespace else "at the cluster scope"
        what = f"resource {quoted(target)} in API group {quoted(group)} {where}"
    else:
        what = f"path {quoted(path)}"
    message = f"User {quoted(user)} cannot {verb} {what}"
    # These parts come from the request, and must not be read as HTML. Go's JSON encoder writes `&` as `\u0026` as
    # well. Decoding undoes that: it is not a second escape.
    return message.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def forbidden_error(
    *,
    user: str,
    verb: str,
    group: str = "",
    resource: str = "",
    subresource: str = "",
    namespace: str = "",
    name: str = "",
    path: str = "",
    reason: str = "",
) -> ForbiddenError:
    """Return the 403 error of one refused request; the `reason` of the authorizer is appended when it is not empty."""
    message = forbidden_message(
        user=user, verb=verb, group=group, resource=resource, subresource=subresource, namespace=namespace, path=path
    )
    if reason:
        message = f"{message}: {reason}"
    return ForbiddenError.of(group, resource, name, message) if resource else ForbiddenError(f"forbidden: {message}")


def resource_version_too_large(requested: int, current: int) -> RequestTimeoutError:
    """Return the 504 error for a revision that the store did not reach in time (docs/protocol/errors.md,
    docs/protocol/watch.md)."""
    cause = Cause("ResourceVersionTooLarge", "Too large resource version")
    return RequestTimeoutError(
        f"Timeout: Too large resource version: {requested}, current: {current}", Details(causes=(cause,), retry_after=1)
    )
