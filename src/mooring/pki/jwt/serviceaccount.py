"""Claims of service account tokens: bound tokens, and the legacy tokens that Secrets hold.

Rules kept here (docs/protocol/service-account-tokens.md):
* A bound token names its namespace, service account and bound objects in the claim `kubernetes.io`.
* A legacy token is issued without expiry and audience. Its issuer is `kubernetes/serviceaccount`, whatever the cluster's issuer is.
  Namespace, Secret, account and the account's uid are each a non-empty text, and `sub` agrees with them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from mooring.identity import service_account_username
from mooring.pki.jwt.token import Claims, audiences

LEGACY_ISSUER = "kubernetes/serviceaccount"
_PREFIX = "kubernetes.io/serviceaccount/"
_NAMESPACE = _PREFIX + "namespace"
_SECRET = _PREFIX + "secret.name"
_ACCOUNT = _PREFIX + "service-account.name"
_UID = _PREFIX + "service-account.uid"


@dataclass(frozen=True, slots=True)
class Bound:
    """An object that a token is bound to: the token is valid while the object of this uid exists."""

    name: str
    uid: str

    def claim(self) -> dict[str, str]:
        """Return the claim that names the object."""
        return {"name": self.name, "uid": self.uid}


def bound_claims(
    *,
    issuer: str,
    namespace: str,
    service_account: Bound,
    audiences: Iterable[str],
    now: datetime,
    lifetime: timedelta,
    jti: str,
    pod: Bound | None = None,
    secret: Bound | None = None,
    node: Bound | None = None,
) -> Claims:
    """Return the claims of a bound token."""
    issued = int(now.timestamp())
    private: dict[str, Any] = {"namespace": namespace}
    for kind, bound in (("node", node), ("pod", pod), ("secret", secret), ("serviceaccount", service_account)):
        if bound is not None:
            private[kind] = bound.claim()
    return {
        "aud": list(audiences),
        "exp": issued + int(lifetime.total_seconds()),
        "iat": issued,
        "iss": issuer,
        "jti": jti,
        "kubernetes.io": private,
        "nbf": issued,
        "sub": service_account_username(namespace, service_account.name),
    }


@dataclass(frozen=True, slots=True)
class LegacyToken:
    """The service account and Secret that a legacy token names. Kubernetes gives it no audiences, and another issuer may."""

    namespace: str
    secret: str
    account: str
    uid: str
    audiences: tuple[str, ...] = ()

    @property
    def username(self) -> str:
        """Username of the service account."""
        return service_account_username(self.namespace, self.account)

    def claims(self) -> Claims:
        """Return the claims to sign."""
        return {
            "iss": LEGACY_ISSUER,
            _NAMESPACE: self.namespace,
            _SECRET: self.secret,
            _ACCOUNT: self.account,
            _UID: self.uid,
            "sub": self.username,
        }


def read_legacy(claims: Claims) -> LegacyToken | str:
    """Return the legacy token of verified claims, or the reason for the operator why they are not one.

    Raises TokenRefusedError, malformed, for an `aud` of another type.
    """
    values: list[str] = []
    for name in (_NAMESPACE, _SECRET, _ACCOUNT, _UID):
        value = claims.get(name)
        if not isinstance(value, str) or not value:
            return f"the claim {name} is no text, or empty"
        values.append(value)
    namespace, secret, account, uid = values
    token = LegacyToken(namespace, secret, account, uid, audiences(claims))
    return token if claims.get("sub") == token.username else "the claim sub names another account"
