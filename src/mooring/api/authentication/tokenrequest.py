"""TokenRequest: defaults and validation of the `token` subresource of ServiceAccounts; not a resource of its own.

Rules kept here (docs/protocol/service-account-tokens.md#tokenrequest):
* A token lives 3600 seconds by default, at least 10 minutes and at most 2^32 seconds.
* Audiences default to those of the API server; the issuer, which knows them, fills them in. There are at most 64.
"""

from __future__ import annotations

from mooring.apimachinery.schema import Obj, message
from mooring.errors import FieldError, invalid

DEFAULT_SECONDS = 3600
MIN_SECONDS = 600
MAX_SECONDS = 1 << 32
MAX_AUDIENCES = 64
"""Audiences of one token. Each is text of the client in the header of every later request."""


TOKEN_REQUEST = message("io.k8s.api.authentication.v1.TokenRequest")


def default(obj: Obj) -> None:
    """Fill in defaults, in place, except audiences."""
    spec = obj.setdefault("spec", {})
    spec.setdefault("expirationSeconds", DEFAULT_SECONDS)


def validate(obj: Obj) -> list[FieldError]:
    """Validate a request that has its defaults."""
    spec, path = obj["spec"], "spec.expirationSeconds"
    seconds = spec["expirationSeconds"]
    errors: list[FieldError] = []
    if seconds < MIN_SECONDS:
        errors.append(invalid(path, seconds, "may not specify a duration less than 10 minutes"))
    if seconds > MAX_SECONDS:
        errors.append(invalid(path, seconds, "may not specify a duration larger than 2^32 seconds"))
    if len(spec.get("audiences") or ()) > MAX_AUDIENCES:
        errors.append(FieldError("FieldValueTooMany", "spec.audiences", f"must have at most {MAX_AUDIENCES} items"))
    return errors
