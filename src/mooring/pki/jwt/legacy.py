"""The claims of service account tokens that Secrets hold: no end, no audience, bound to their Secret by its name.

Rules kept here (docs/protocol/service-account-tokens.md#legacy-tokens): the issuer is `kubernetes/serviceaccount`, whatever the
cluster's issuer is called; namespace, Secret, account and the account's uid are each a text that is not empty, and `sub` agrees
with them.
"""

from __future__ import annotations

from dataclasses import dataclass

from mooring.identity import service_account_username
from mooring.pki.jwt.token import Claims

LEGACY_ISSUER = "kubernetes/serviceaccount"
_PREFIX = "kubernetes.io/serviceaccount/"
_NAMESPACE = _PREFIX + "namespace"
_SECRET = _PREFIX + "secret.name"
_ACCOUNT = _PREFIX + "service-account.name"
_UID = _PREFIX + "service-account.uid"


@dataclass(frozen=True, slots=True)
class LegacyToken:
    """What such a token says."""

    namespace: str
    secret: str
    account: str
    uid: str

    @property
    def username(self) -> str:
        return service_account_username(self.namespace, self.account)

    def claims(self) -> Claims:
        """To be signed."""
        return {
            "iss": LEGACY_ISSUER,
            _NAMESPACE: self.namespace,
            _SECRET: self.secret,
            _ACCOUNT: self.account,
            _UID: self.uid,
            "sub": self.username,
        }


def read_legacy(claims: Claims) -> LegacyToken | str:
    """What verified claims say, or what is wrong with them, for the operator."""
    said: list[str] = []
    for name in (_NAMESPACE, _SECRET, _ACCOUNT, _UID):
        value = claims.get(name)
        if not isinstance(value, str) or not value:
            return f"the claim {name} is no text, or empty"
        said.append(value)
    token = LegacyToken(*said)
    return token if claims.get("sub") == token.username else "the claim sub names another account"
