"""Every error Mooring raises, split by whose fault it is.

Rules kept here:
* An error belongs to exactly one fault: the caller's (`ApiError` and below, which carry a Kubernetes reason), the
  operator's (`ConfigError`), the peer's (`PeerError`), the disk's or database's (`StorageError`).
* No message ever contains a token, key or password: errors name the field or the public id, never the value of a secret.
* How an `ApiError` meets HTTP (code, Status body) is decided in one place only: `mooring.apimachinery.status`.

Reasons and causes: k8s.io/apimachinery `metav1.StatusReason`, `metav1.CauseType` (docs/protocol/errors.md).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar


class MooringError(Exception):
    """Root of every error raised on purpose. `str(error)` is one sentence that says what to do."""


class ConfigError(MooringError):
    """The operator's input (flag, file, environment) cannot be used; the message names the key."""


class ArgumentError(ConfigError):
    """An argument of the command line can mean nothing, such as a name with a slash."""


class PeerError(MooringError):
    """The other side of a connection was unreachable, not what it claimed, or refused us."""


class StorageError(MooringError):
    """The database cannot do what was asked: disk full, read-only, corrupt, closed."""


@dataclass(frozen=True, slots=True)
class FieldError:
    """One broken rule of one field, printed the way Kubernetes prints `field.Error`."""

    reason: str
    field: str
    detail: str = ""
    value: Any = None

    _TITLES: ClassVar[dict[str, str]] = {
        "FieldValueInvalid": "Invalid value",
        "FieldValueRequired": "Required value",
        "FieldValueDuplicate": "Duplicate value",
        "FieldValueNotSupported": "Unsupported value",
        "FieldValueForbidden": "Forbidden",
        "FieldValueTooLong": "Too long",
        "FieldValueTooMany": "Too many",
        "FieldValueTypeInvalid": "Invalid value",
        "FieldValueNotFound": "Not found",
    }
    _WITHOUT_VALUE: ClassVar[frozenset[str]] = frozenset(
        {"FieldValueRequired", "FieldValueForbidden", "FieldValueTooLong", "FieldValueTooMany"}
    )

    @property
    def body(self) -> str:
        """The message without the field path, as `causes[].message` carries it."""
        title = self._TITLES[self.reason]
        if self.reason not in self._WITHOUT_VALUE:
            title = f"{title}: {_cut(_printed(self.value))}"
        return f"{title}: {self.detail}" if self.detail else title

    def __str__(self) -> str:
        return f"{self.field}: {self.body}"


def _cut(text: str) -> str:
    return text if len(text) <= MAX_QUOTED else text[:MAX_QUOTED] + "..."


_ESCAPES = {'"': '\\"', "\\": "\\\\"} | dict(zip("\a\b\f\n\r\t\v", (rf"\{name}" for name in "abfnrtv"), strict=True))


def quoted(text: str) -> str:
    """Return the text in double quotes as Go's `%q` writes it."""
    if text.isprintable() and not ('"' in text or "\\" in text):
        return f'"{text}"'
    return '"' + "".join(map(_quoted_character, text)) + '"'


def _quoted_character(char: str) -> str:
    escape = _ESCAPES.get(char)
    if escape is not None or char.isprintable():
        return escape or char
    code = ord(char)
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x1_0000 else f"\\U{code:08x}"


def _printed(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, str):
        return quoted(value[: MAX_QUOTED + 1])
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, list | tuple | dict):
        return _json_value(value)
    return f'"{value}"'


def _json_value(value: Any) -> str:
    """Return JSON as Go's encoding/json writes it: safe within HTML."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text


def invalid(path: str, value: Any, detail: str) -> FieldError:
    return FieldError("FieldValueInvalid", path, detail, value)


def required(path: str, detail: str = "") -> FieldError:
    return FieldError("FieldValueRequired", path, detail)


def duplicate(path: str, value: Any) -> FieldError:
    return FieldError("FieldValueDuplicate", path, "", value)


def not_supported(path: str, value: Any, allowed: Sequence[str]) -> FieldError:
    listed = ", ".join(f'"{item}"' for item in allowed)
    return FieldError("FieldValueNotSupported", path, f"supported values: {listed}", value)


def forbidden(path: str, detail: str) -> FieldError:
    return FieldError("FieldValueForbidden", path, detail)


def too_long(path: str, limit: int) -> FieldError:
    return FieldError("FieldValueTooLong", path, f"may not be more than {limit} bytes")


@dataclass(frozen=True, slots=True)
class Cause:
    """One `details.causes[]` entry of a Status."""

    reason: str
    message: str
    field: str = ""


@dataclass(frozen=True, slots=True)
class Details:
    """What a Status says about the object concerned. `kind` is the resource plural, except for Invalid."""

    name: str = ""
    group: str = ""
    kind: str = ""
    uid: str = ""
    causes: tuple[Cause, ...] = field(default=())
    retry_after: int = 0


class ApiError(MooringError):
    """A request that was refused; carries a Kubernetes reason and, where known, the object concerned."""

    reason: ClassVar[str] = ""
    shows_details: ClassVar[bool] = False
    """Whether the Status has `details` also when they say nothing."""

    def __init__(self, message: str, details: Details | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.details = details or Details()


def qualified(resource: str, group: str) -> str:
    """`<resource>[.<group>]`, the way Kubernetes names a resource in messages."""
    return f"{resource}.{group}" if group else resource


class BadRequestError(ApiError):
    reason = "BadRequest"


class UnauthorizedError(ApiError):
    """Authentication failed. The message is always the same word: the caller learns nothing (law 11).

    `audit_id`: under what the server's operator finds the reason; "" when it is not known.
    """

    reason = "Unauthorized"

    def __init__(self, audit_id: str = "") -> None:
        super().__init__("Unauthorized")
        self.audit_id = audit_id


class ForbiddenError(ApiError):
    reason = "Forbidden"
    shows_details = True

    @classmethod
    def of(cls, group: str, resource: str, name: str, why: str) -> ForbiddenError:
        target = f'{qualified(resource, group)} "{name}"' if name else qualified(resource, group)
        return cls(f"{target} is forbidden: {why}", Details(name=name, group=group, kind=resource))


class NotFoundError(ApiError):
    reason = "NotFound"
    shows_details = True

    @classmethod
    def of(cls, group: str, resource: str, name: str) -> NotFoundError:
        return cls(f'{qualified(resource, group)} "{name}" not found', Details(name=name, group=group, kind=resource))


class AlreadyExistsError(ApiError):
    reason = "AlreadyExists"

    @classmethod
    def of(cls, group: str, resource: str, name: str) -> AlreadyExistsError:
        return cls(
            f'{qualified(resource, group)} "{name}" already exists',
            Details(name=name, group=group, kind=resource),
        )


class ConflictError(ApiError):
    reason = "Conflict"

    @classmethod
    def of(cls, group: str, resource: str, name: str, why: str) -> ConflictError:
        return cls(
            f'Operation cannot be fulfilled on {qualified(resource, group)} "{name}": {why}',
            Details(name=name, group=group, kind=resource),
        )


STALE = "the object has been modified; please apply your changes to the latest version and try again"


MAX_TOLD = 100
"""Broken rules one answer names: a body of 3 MiB can break a hundred thousand, and each quotes what was sent."""
MAX_QUOTED = 16_384
"""Characters of a value that an error quotes; the largest that somebody wants to read is a long list of names."""


class InvalidError(ApiError):
    reason = "Invalid"

    @classmethod
    def of(cls, group: str, kind: str, name: str, errors: Sequence[FieldError]) -> InvalidError:
        """422 for one or more broken rules; several are bracketed, and of very many the first are told."""
        told = errors[:MAX_TOLD]
        texts = [str(error) for error in told]
        if len(errors) > MAX_TOLD:
            texts.append(f"and {len(errors) - MAX_TOLD} more")
        body = texts[0] if len(texts) == 1 else "[" + ", ".join(texts) + "]"
        causes = tuple(Cause(error.reason, error.body, error.field) for error in told)
        return cls(
            f'{qualified(kind, group)} "{name}" is invalid: {body}',
            Details(name=name, group=group, kind=kind, causes=causes),
        )


class PatchRejectedError(InvalidError):
    """A JSON patch that can be read but not carried out. The message says no more: object and patch may hold secrets."""

    shows_details = True

    def __init__(self) -> None:
        super().__init__("the server rejected our request due to an error in our request")


class MethodNotAllowedError(ApiError):
    reason = "MethodNotAllowed"
    shows_details = True

    def __init__(self, more: str = "") -> None:
        """`more` goes on after the sentence that is always said."""
        super().__init__("the server does not allow this method on the requested resource" + more)


class NotAcceptableError(ApiError):
    reason = "NotAcceptable"
    shows_details = True


class UnsupportedMediaTypeError(ApiError):
    reason = "UnsupportedMediaType"


class RequestEntityTooLargeError(ApiError):
    reason = "RequestEntityTooLarge"


class TooManyRequestsError(ApiError):
    reason = "TooManyRequests"

    def __init__(self, message: str = "Too many requests, please try again later.", retry_after: int = 1) -> None:
        super().__init__(message, Details(retry_after=retry_after))


class ExpiredError(ApiError):
    """410: the revision asked for is gone; list again, or go on with `continue_token` where there is one."""

    reason = "Expired"

    def __init__(self, message: str, details: Details | None = None, continue_token: str = "") -> None:
        super().__init__(message, details)
        self.continue_token = continue_token


class InternalServerError(ApiError):
    reason = "InternalError"


class ServiceUnavailableError(ApiError):
    reason = "ServiceUnavailable"


class RequestTimeoutError(ApiError):
    """504: the server could not answer in time."""

    reason = "Timeout"
