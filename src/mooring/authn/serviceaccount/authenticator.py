"""Bound service account tokens.

Rules kept here (docs/protocol/service-account-tokens.md#bound-tokens; KEP-1205, KEP-4193):
1. A bearer token that is not a JWT, or of a foreign issuer, is not mine.
2. Signature, algorithm, key id and times are judged once (`mooring.authn.signedtokens`).
3. Claims must hold namespace, service account and uid, and `sub` must agree with them.
4. The token must be valid for one of the requested audiences.
5. On every request, the views must hold the service account with the uid of the token, and the Secret, Pod or Node that it is
   bound to. The Node of a token that is bound to a Pod is information only.
6. Extra: `credential-id` is `JTI=<jti>`; Pod and Node stand there by name and uid.
7. A token with an extended life (`warnafter`) is accepted after that time, and the audit record marks it as stale.
8. Null in place of an object or of a uid is an absent one, and so is a `warnafter` of 0, as in kube-apiserver.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from mooring.api.view import Views
from mooring.authn.authenticator import SECRET
from mooring.authn.claims.mapping import ClaimsRefusedError
from mooring.authn.credentials import Credentials
from mooring.authn.reasons import MALFORMED_CLAIMS, WRONG_AUDIENCE
from mooring.authn.serviceaccount.liveobjects import Live, problem
from mooring.authn.signedtokens import SignedTokens
from mooring.authn.verdict import Accepted, Rejected, Verdict
from mooring.authn.verifiedtokens import MAX_REMEMBERED
from mooring.identity import CREDENTIAL_ID, UserInfo, service_account_groups, service_account_username
from mooring.pki.jwt.claims import audiences, time_claim
from mooring.pki.jwt.compact import Claims
from mooring.pki.jwt.keyset import KeySet

EXTRA_PREFIX = "authentication.kubernetes.io/"
STALE_TOKEN = "authentication.k8s.io/stale-token"  # noqa: S105 - an annotation's name, not a password
WARN_AFTER = "warnafter"

_NO_WARNING = datetime.fromtimestamp(0, UTC)
_NODE_BOUND = ("node", "nodes")
_SECRET_BOUND = ("secret", "secrets")
_POD_BOUND = ("pod", "pods")


@dataclass(frozen=True, slots=True)
class _Token:
    """Content of a verified token."""

    user: UserInfo
    audiences: tuple[str, ...]
    live: tuple[Live, ...]
    warn_after: datetime | None


class ServiceAccountAuthenticator:
    """Judges bearer tokens that are JWTs of an issuer of this cluster."""

    name = "service-account"
    judges = SECRET

    def __init__(self, issuers: Collection[str], keys: KeySet, max_remembered: int = MAX_REMEMBERED) -> None:
        self._tokens = SignedTokens(issuers, keys, _read_claims, max_remembered=max_remembered)

    def replace(self, keys: KeySet) -> None:
        """Verify with these keys from now on, and no others."""
        self._tokens.replace(keys)

    def authenticate(self, credentials: Credentials, views: Views, now: datetime, audiences: Sequence[str]) -> Verdict:
        token = self._tokens.judge(credentials.bearer, now)
        if not isinstance(token, _Token):
            return token
        valid_for = (
            tuple(audience for audience in token.audiences if audience in audiences) if audiences else token.audiences
        )
        username = token.user.username
        if not valid_for:
            detail = f"good for {', '.join(token.audiences) or 'no audience'}, wants audience {' or '.join(audiences)}"
            return Rejected(WRONG_AUDIENCE, f"{username}: {detail}")
        for one in token.live:
            refused = problem(views, one, now)
            if refused is not None:
                return replace(refused, detail=f"{username}: {refused.detail}")
        if token.warn_after is None or now <= token.warn_after:
            return Accepted(token.user, valid_for)
        late = (now - token.warn_after).total_seconds()
        stale = f"subject: {username}, seconds after warning threshold: {late:.0f}"
        return Accepted(token.user, valid_for, annotations=((STALE_TOKEN, stale),))


def _malformed_error(claim: str) -> ClaimsRefusedError:
    return ClaimsRefusedError(MALFORMED_CLAIMS, f"the claim {claim} is missing, or not what it must be")


def _read_claims(claims: Claims) -> tuple[_Token, datetime]:
    """Return the content of the claims, and the time until which it may be remembered. Raises ClaimsRefusedError (rule 3)."""
    private = claims.get("kubernetes.io")
    if not isinstance(private, dict):
        raise _malformed_error("kubernetes.io")
    namespace, account = private.get("namespace"), _read_reference(private, "serviceaccount")
    if not isinstance(namespace, str) or not namespace:
        raise _malformed_error("kubernetes.io namespace")
    if not account[1]:
        raise _malformed_error("kubernetes.io serviceaccount uid")
    username = service_account_username(namespace, account[0])
    if claims.get("sub") != username:
        raise _malformed_error("sub")
    if claims.get("aud") is None:
        raise _malformed_error("aud")
    live = [Live("serviceaccounts", namespace, *account)]
    extra: dict[str, tuple[str, ...]] = {}
    if claims.get("jti"):
        extra[CREDENTIAL_ID] = (f"JTI={claims['jti']}",)
    for kind, plural in (_SECRET_BOUND, _POD_BOUND, _NODE_BOUND):
        if private.get(kind) is None:
            continue
        name, uid = _read_reference(private, kind)
        if kind != "node" or private.get("pod") is None:
            live.append(Live(plural, "" if kind == "node" else namespace, name, uid))
        if kind != "secret":
            extra[f"{EXTRA_PREFIX}{kind}-name"] = (name,)
            if uid:
                extra[f"{EXTRA_PREFIX}{kind}-uid"] = (uid,)
    token = _Token(
        user=UserInfo(username, account[1], service_account_groups(namespace), MappingProxyType(extra)),
        audiences=audiences(claims),
        live=tuple(live),
        warn_after=_read_warn_after(private),
    )
    return token, datetime.fromtimestamp(claims["exp"], UTC)  # the minute of leeway after it is verified each time


def _read_warn_after(private: dict[str, Any]) -> datetime | None:
    moment = time_claim(private, WARN_AFTER)
    return moment if moment != _NO_WARNING else None


def _read_reference(private: dict[str, Any], kind: str) -> tuple[str, str]:
    """Return name and uid of an object that a claim names. The uid is empty for a Node that was gone. Raises ClaimsRefusedError."""
    found = private.get(kind)
    if not isinstance(found, dict):
        raise _malformed_error(f"kubernetes.io {kind}")
    name, uid = found.get("name"), found.get("uid")
    if not isinstance(name, str) or not name or not isinstance(uid, str | None):
        raise _malformed_error(f"kubernetes.io {kind}")
    return name, uid or ""
