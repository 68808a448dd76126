"""Errors that Mooring raises, split by whose fault they are, and field errors as Kubernetes words them.

Rules kept here:
* An error belongs to exactly one fault: the client's (`ApiError` and below, which carry a Kubernetes reason), the
  operator's (`ConfigError`), the peer's (`PeerError`), the disk's or database's (`StorageError`).
* No message ever contains a token, key or password: errors name the field or the public id, never the value of a secret.
* The HTTP code and the Status body of an `ApiError` are decided in one place only: `mooring.apimachinery.status`.

Reasons and causes: k8s.io/apimachinery `metav1.StatusReason`, `metav1.CauseType` (docs/protocol/errors.md).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar, Self


class MooringError(Exception):
    """Root of all errors of this project. `str(error)` is one sentence that says what to do."""


class ConfigError(MooringError):
    """Invalid input of the operator (flag, file, environment); the message names the key."""


class ArgumentError(ConfigError):
    """Invalid argument on the command line, such as a name with a slash."""


class PeerError(MooringError):
    """Failure of a peer: unreachable, not the claimed identity, or refusing the request."""


class StorageError(MooringError):
    """Failure of the database: disk full, read-only, corrupt, closed."""


class UnreadableObjectError(StorageError):
    """A stored object that cannot be decrypted or decoded, and that the caller needs."""


class UnknownOutcomeError(StorageError):
    """A write that was sent to the store, and whose outcome was not learned: it may or may not be stored."""


class Omitted:
    """Type of `OMITTED`."""


OMITTED = Omitted()
"""Value of a field error that shows no value."""


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
        """Message without the field path, for `causes[].message`."""
        title = self._TITLES[self.reason]
        if self.reason not in self._WITHOUT_VALUE and self.value is not OMITTED:
            title = f"{title}: {_truncated(_printed(self.value))}"
        return f"{title}: {self.detail}" if self.detail else title

    def __str__(self) -> str:
        return f"{self.field}: {self.body}"


def _truncated(text: str) -> str:
    return text if len(text) <= MAX_QUOTED else text[:MAX_QUOTED] + "..."


_ESCAPES = {'"': '\\"', "\\": "\\\\"} | dict(zip("\a\b\f\n\r\t\v", (rf"\{name}" for name in "abfnrtv"), strict=True))


def quoted(text: str) -> str:
    """Quote the text as Go's `%q` does."""
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
    """Return JSON as Go's encoding/json writes it, with HTML characters escaped."""
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
    return FieldError("FieldValueNotSupported", path, f"supported values: {_listed(tuple(allowed))}", value)


@lru_cache(256)
def _listed(values: tuple[str, ...]) -> str:
    """Return values in quotes. A list of 4 000 unknown values needs the same text for each."""
    return ", ".join(f'"{value}"' for value in values)


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
    """`details` of a Status. `kind` is the resource plural, except for Invalid (docs/protocol/errors.md)."""

    name: str = ""
    group: str = ""
    kind: str = ""
    uid: str = ""
    causes: tuple[Cause, ...] = field(default=())
    retry_after: int = 0


class ApiError(MooringError):
    """Refused request; carries a Kubernetes reason and, where known, details about the object."""

    reason: ClassVar[str] = ""
    shows_details: ClassVar[bool] = False
    """True when the Status has `details` even if they are empty."""

    def __init__(self, message: str, details: Details | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.details = details or Details()
        self.audit_id = ""
        """Id under which the operator of the server finds the reason; "" for an error that no server sent."""


def qualified(resource: str, group: str) -> str:
    """Return `<resource>[.<group>]`, the form of a resource in Kubernetes messages."""
    return f"{resource}.{group}" if group else resource


class BadRequestError(ApiError):
    reason = "BadRequest"


class UnauthorizedError(ApiError):
    """Failed authentication. The message is `Unauthorized`, or k3s's `not authorized`: the client learns no reason (law 11)."""

    reason = "Unauthorized"

    def __init__(self, message: str = "Unauthorized") -> None:
        super().__init__(message)


class ForbiddenError(ApiError):
    reason = "Forbidden"
    shows_details = True

    @classmethod
    def of(cls, group: str, resource: str, name: str, detail: str) -> ForbiddenError:
        target = f'{qualified(resource, group)} "{name}"' if name else qualified(resource, group)
        return cls(f"{target} is forbidden: {detail}", Details(name=name, group=group, kind=resource))


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
    def of(cls, group: str, resource: str, name: str, detail: str) -> Self:
        return cls(
            f'Operation cannot be fulfilled on {qualified(resource, group)} "{name}": {detail}',
            Details(name=name, group=group, kind=resource),
        )


class NamespaceHeldError(ConflictError):
    """A namespace that cannot be removed, because objects of other servers are in it."""


STALE = "the object has been modified; please apply your changes to the latest version and try again"


MAX_FIELD_ERRORS = 100
"""Field errors in one response: a body of 3 MiB can have a hundred thousand, and each quotes a value."""
MAX_READ_ERRORS = 100
"""Objects that cannot be read of which one response tells; kube-apiserver's limit."""
MAX_QUOTED = 16_384
"""Characters of a value that an error quotes; the largest readable value is a long list of names."""


class InvalidError(ApiError):
    reason = "Invalid"

    @classmethod
    def of(cls, group: str, kind: str, name: str, errors: Sequence[FieldError]) -> InvalidError:
        """Build the 422 for one or more field errors: several are bracketed, and of many only the first are listed."""
        listed = errors[:MAX_FIELD_ERRORS]
        texts = [str(error) for error in listed]
        if len(errors) > MAX_FIELD_ERRORS:
            texts.append(f"and {len(errors) - MAX_FIELD_ERRORS} more")
        body = texts[0] if len(texts) == 1 else "[" + ", ".join(texts) + "]"
        causes = tuple(Cause(error.reason, error.body, error.field) for error in listed)
        return cls(
            f'{qualified(kind, group)} "{name}" is invalid: {body}',
            Details(name=name, group=group, kind=kind, causes=causes),
        )


class PatchRejectedError(InvalidError):
    """JSON patch that is well formed but cannot be applied. The message has no details: object and patch may hold secrets."""

    shows_details = True

    def __init__(self) -> None:
        super().__init__("the server rejected our request due to an error in our request")


class MethodNotAllowedError(ApiError):
    reason = "MethodNotAllowed"
    shows_details = True

    def __init__(
        self,
        message: str = "the server does not allow this method on the requested resource",
        details: Details | None = None,
    ) -> None:
        super().__init__(message, details)

    @classmethod
    def not_supported(cls, verb: str, group: str, resource: str, why: str) -> MethodNotAllowedError:
        """Build the 405 for a verb that this server does not have for a kind, in Kubernetes' sentence, and say why."""
        return cls(
            f'{verb} is not supported on resources of kind "{qualified(resource, group)}": {why}',
            Details(group=group, kind=resource),
        )


class NotAcceptableError(ApiError):
    reason = "NotAcceptable"


class RoutedNotAcceptableError(NotAcceptableError):
    """406 as the router of kube-apiserver answers it, before any handler."""

    shows_details = True


class UnsupportedMediaTypeError(ApiError):
    reason = "UnsupportedMediaType"


class RoutedUnsupportedMediaTypeError(UnsupportedMediaTypeError):
    """415 as the router of kube-apiserver answers it, before any handler."""

    shows_details = True

    def __init__(self) -> None:
        super().__init__("415: Unsupported Media Type")


class RequestEntityTooLargeError(ApiError):
    reason = "RequestEntityTooLarge"


class TooManyRequestsError(ApiError):
    reason = "TooManyRequests"

    def __init__(self, message: str = "Too many requests, please try again later.", retry_after: int = 1) -> None:
        super().__init__(message, Details(retry_after=retry_after))


class ExpiredError(ApiError):
    """410: the requested revision was compacted. The client lists again, or continues with `continue_token`."""

    reason = "Expired"

    def __init__(self, message: str, details: Details | None = None, continue_token: str = "") -> None:
        super().__init__(message, details)
        self.continue_token = continue_token


class InternalServerError(ApiError):
    reason = "InternalError"


class StorageReadError(InternalServerError):
    """500: a list would contain objects that cannot be read. Each cause names the storage key of one."""

    reason = "StorageReadError"

    @classmethod
    def of(cls, group: str, resource: str, problems: Sequence[tuple[str, str]]) -> StorageReadError:
        """Return the error for `problems`: storage keys and why their values cannot be read."""
        listed = problems[:MAX_READ_ERRORS]
        causes = [Cause("UnexpectedServerResponse", f"{key}: {problem}", key) for key, problem in listed]
        if len(problems) > MAX_READ_ERRORS:
            causes.append(Cause("FieldValueTooMany", "too many errors, the list is truncated"))
        (first, problem), others = listed[0], len(problems) - 1
        return cls(
            f'failed to read one or more {qualified(resource, group)} from the storage: unable to transform key "{first}": '
            + (f"{problem} (and {others} more)" if others else problem),
            Details(name="list", group=group, kind=resource, causes=tuple(causes)),
        )


class ServiceUnavailableError(ApiError):
    reason = "ServiceUnavailable"


class RequestTimeoutError(ApiError):
    """504: the server could not answer in time."""

    reason = "Timeout"
