"""TokenRequest: schema, defaults and validation of the `token` subresource of ServiceAccounts; not a resource of its own.

Rules kept here (docs/protocol/service-account-tokens.md#tokenrequest):
* A token lives 3600 seconds by default, at least 10 minutes and at most 2^32 seconds.
* Audiences default to those of the API server; the issuer, which knows them, fills them in. There are at most 64.
"""

from __future__ import annotations

from mooring.apimachinery.metav1 import OBJECT_META
from mooring.apimachinery.schema import Field, ListOf, MapOf, Message, Obj, Scalar
from mooring.errors import FieldError, invalid

API = "io.k8s.api.authentication.v1."

DEFAULT_SECONDS = 3600
MIN_SECONDS = 600
MAX_SECONDS = 1 << 32
MAX_AUDIENCES = 64
"""Audiences of one token. Each is text of the client in the header of every later request."""

BOUND_OBJECT_REFERENCE = Message(
    API + "BoundObjectReference",
    (
        Field("kind", 1, Scalar.STRING, "Pod, Secret or Node."),
        Field("apiVersion", 2, Scalar.STRING, "API version of the object: v1."),
        Field("name", 3, Scalar.STRING, "Name of the object."),
        Field("uid", 4, Scalar.STRING, "UID of the object; when given it must be the present one."),
    ),
    "An object whose end ends the token.",
)

TOKEN_REQUEST_SPEC = Message(
    API + "TokenRequestSpec",
    (
        Field(
            "audiences", 1, ListOf(Scalar.STRING), "Who may accept the token; the API server when empty.", required=True
        ),
        Field(
            "boundObjectRef",
            3,
            BOUND_OBJECT_REFERENCE,
            "The token is valid only while this object exists.",
            pointer=True,
        ),
        Field(
            "expirationSeconds",
            4,
            Scalar.INT64,
            "Wanted lifetime in seconds, at least 600; the issuer may shorten it.",
            pointer=True,
        ),
        Field(
            "attestations",
            5,
            MapOf(Scalar.STRING_LIST),
            "Evidence about the requester, for issuers that ask for some.",
        ),
    ),
    "What token is wanted.",
)

TOKEN_REQUEST_STATUS = Message(
    API + "TokenRequestStatus",
    (
        Field("token", 1, Scalar.STRING, "The signed token. It is shown once and not stored.", required=True),
        Field("expirationTimestamp", 2, Scalar.TIME, "When the token expires.", required=True),
    ),
    "The token that was issued.",
)

TOKEN_REQUEST = Message(
    API + "TokenRequest",
    (
        Field("metadata", 1, OBJECT_META, "Standard object metadata; name and namespace are those of the account."),
        Field("spec", 2, TOKEN_REQUEST_SPEC, "What token is wanted.", required=True),
        Field("status", 3, TOKEN_REQUEST_STATUS, "The token that was issued; filled in by the server."),
    ),
    "Asks for a token of a service account.",
)


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
