"""TokenRequest: issues a bound token for a service account.

Rules kept here (docs/protocol/service-account-tokens.md#tokenrequest; KEP-1205):
1. `mooring.api.authentication.tokenrequest` has defaulted and validated the request. `spec.audiences` defaults to the server's.
2. Name and namespace in the request's metadata, when given, must be those of the service account (422). Another uid than the
   account's is 409; no account is 404.
3. A bound object is a Pod, Secret or Node of `v1` that exists (404) and has the given uid (409). A Pod belongs to the service
   account. Other kinds are 400, and so is a reference without a kind or name.
4. A life longer than the server allows is shortened, with a warning.
5. The token carries `iss sub aud exp iat nbf jti` and the `kubernetes.io` claim. The answer carries the token, its end, and name,
   namespace and uid of the account.
6. The token that every Pod gets (bound to it, for the API alone, for exactly 3607 seconds) lives a year, so that a program which
   reads its file once goes on working. `warnafter` and the answer still say 3607 seconds. The longest life that the server allows
   bounds it, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from mooring.api.view import Views
from mooring.apimachinery.schema import Obj
from mooring.authn.serviceaccount.authenticator import WARN_AFTER
from mooring.clock import rfc3339
from mooring.errors import BadRequestError, ConflictError, InvalidError, NotFoundError, invalid
from mooring.pki.jwt.serviceaccount import Bound, bound_claims
from mooring.pki.jwt.token import TokenSigner

API_GROUP = "authentication.k8s.io"

ISSUED_CREDENTIAL_ID = "authentication.kubernetes.io/issued-credential-id"
"""The audit annotation that carries `Issued.credential_id`."""

AUTOMATIC_SECONDS = 3607
"""Life that the admission plugin ServiceAccount requests: an hour, and seven seconds that mark the request."""
EXTENDED_SECONDS = 365 * 24 * 3600

_PLURALS = {"Pod": "pods", "Secret": "secrets", "Node": "nodes"}


@dataclass(frozen=True, slots=True)
class Issued:
    """The answered TokenRequest (it holds the token: never log it), warnings for the caller, and the id for the audit record."""

    response: Obj
    credential_id: str
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenIssuance:
    """Decisions of the server: time, token id, default audiences, and longest life in seconds (0: no limit).

    `extend`: rule 6 applies.
    """

    now: datetime
    token_id: str
    audiences: tuple[str, ...]
    max_seconds: int = 0
    extend: bool = False


def issue(
    request: Obj, namespace: str, name: str, views: Views, signer: TokenSigner, issuance: TokenIssuance
) -> Issued:
    """Issue a token for service account `namespace/name`. Raises NotFoundError, InvalidError, ConflictError, BadRequestError."""
    spec = request["spec"]
    account = views["serviceaccounts"].get(name, namespace)
    if account is None:
        raise NotFoundError.of("", "serviceaccounts", name)
    uid = account["metadata"].get("uid", "")
    _check_metadata(request.get("metadata") or {}, namespace, name, uid)
    seconds = spec["expirationSeconds"]
    bound = _resolve_bound(spec.get("boundObjectRef"), namespace, name, views)
    warnings: tuple[str, ...] = ()
    if issuance.max_seconds and seconds > issuance.max_seconds:
        warnings = (f"requested expiration of {seconds} seconds shortened to {issuance.max_seconds} seconds",)
        seconds = issuance.max_seconds
    audiences = list(spec.get("audiences") or issuance.audiences)
    automatic = seconds == AUTOMATIC_SECONDS and "pod" in bound and set(audiences) <= set(issuance.audiences)
    extended = automatic and issuance.extend
    life = min(EXTENDED_SECONDS, issuance.max_seconds or EXTENDED_SECONDS) if extended else seconds
    claims = bound_claims(
        issuer=signer.issuer,
        namespace=namespace,
        service_account=Bound(name, uid),
        audiences=audiences,
        now=issuance.now,
        lifetime=timedelta(seconds=life),
        jti=issuance.token_id,
        pod=bound.get("pod"),
        secret=bound.get("secret"),
        node=bound.get("node"),
    )
    if extended:
        claims["kubernetes.io"][WARN_AFTER] = claims["iat"] + seconds
    response: Obj = {
        "kind": "TokenRequest",
        "apiVersion": API_GROUP + "/v1",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": uid,
            "creationTimestamp": rfc3339(issuance.now),
        },
        "spec": {**spec, "audiences": audiences, "expirationSeconds": seconds},
        "status": {
            "token": signer.sign(claims),
            "expirationTimestamp": rfc3339(issuance.now + timedelta(seconds=seconds)),
        },
    }
    return Issued(response, f"JTI={issuance.token_id}", warnings)


def _check_metadata(metadata: Obj, namespace: str, name: str, uid: str) -> None:
    errors = []
    if metadata.get("name", name) != name:
        errors.append(invalid("metadata.name", metadata["name"], "must match the service account name"))
    if metadata.get("namespace", namespace) != namespace:
        errors.append(invalid("metadata.namespace", metadata["namespace"], "must match the service account namespace"))
    if errors:
        raise InvalidError.of(API_GROUP, "TokenRequest", name, errors)
    given = metadata.get("uid") or uid
    if given != uid:
        detail = f"the UID in the token request ({given}) does not match the UID of the service account ({uid})"
        raise ConflictError.of(API_GROUP, "TokenRequest", name, detail)


def _resolve_bound(reference: Obj | None, namespace: str, account: str, views: Views) -> dict[str, Bound]:
    if reference is None:
        return {}
    kind, name, version = reference.get("kind", ""), reference.get("name", ""), reference.get("apiVersion", "")
    if version not in ("", "v1") or kind not in _PLURALS:
        shown = version if "/" in version else f"/{version}"
        raise BadRequestError(f"cannot bind token to object of type {shown}, Kind={kind}")
    if not name:
        raise BadRequestError("Name parameter required.")
    plural = _PLURALS[kind]
    view = views.get(plural)
    obj = None if view is None else view.get(name, "" if kind == "Node" else namespace)
    if obj is None:
        raise NotFoundError.of("", plural, name)
    if kind == "Pod" and obj.get("spec", {}).get("serviceAccountName", "") != account:
        raise BadRequestError(
            f'cannot bind token for serviceaccount "{account}" to pod running with different serviceaccount name.'
        )
    uid = obj["metadata"].get("uid", "")
    given = reference.get("uid") or uid
    if given != uid:
        detail = f"the UID in the bound object reference ({given}) does not match the UID in record."
        raise ConflictError.of("", kind, name, f"{detail} The object might have been deleted and then recreated")
    bound = {kind.lower(): Bound(name, uid)}
    node = obj.get("spec", {}).get("nodeName", "") if kind == "Pod" else ""
    if node:
        bound["node"] = _node_claim(node, views)
    return bound


def _node_claim(name: str, views: Views) -> Bound:
    """Return the Node of a Pod. It is information only, so a Node that is gone has no uid."""
    view = views.get("nodes")
    node = None if view is None else view.get(name)
    return Bound(name, "" if node is None else node["metadata"].get("uid", ""))
