"""Bound service account tokens.

Rules kept here (reference/kubernetes.md 5.7; KEP-1205):
1. A bearer that is no JWT, or of an issuer that is not ours, is not mine. The issuer is read unverified for that only.
2. Signature, algorithm, key id and times are `mooring.pki.jwt`'s to judge. What it accepted is remembered by the SHA-256 of
   the token until the token's expiry, in a bounded table; a clock that went back asks anew.
3. Claims must say namespace, service account and uid, and `sub` must agree with them.
4. The token must be for one of the audiences asked.
5. On every request, from the views: the service account lives and has the uid of the token; so do the Secret, the Pod, or
   the Node it is bound to. For a token bound to a Pod the node is information only.
6. Extra: `credential-id` is `JTI=<jti>`; pod and node by name and uid.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from mooring.authn.authenticator import SECRET
from mooring.authn.chain import WRONG_AUDIENCE
from mooring.authn.credentials import Credentials
from mooring.authn.liveobjects import problem
from mooring.authn.verdict import Accepted, NotMine, Rejected, Verdict
from mooring.identity import CREDENTIAL_ID, UserInfo, service_account_groups, service_account_username
from mooring.kinds.view import Views
from mooring.pki.errors import TokenRefusedError
from mooring.pki.jwt import Claims, VerificationKeys, peek, verify_jwt

MAX_REMEMBERED = 4096  # tokens in use at once, about 1 KiB each; beyond that the longest unused is verified again
MALFORMED_CLAIMS = "malformed-claims"
EXTRA_PREFIX = "authentication.kubernetes.io/"

_NOT_MINE = NotMine()
_NODE_BOUND = ("node", "nodes")
_SECRET_BOUND = ("secret", "secrets")
_POD_BOUND = ("pod", "pods")


@dataclass(frozen=True, slots=True)
class _Live:
    """One object that must be there."""

    plural: str
    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class _Token:
    """What a verified token says. It holds from `since` (when it was verified) to `until`."""

    user: UserInfo
    audiences: tuple[str, ...]
    live: tuple[_Live, ...]
    since: datetime
    until: datetime


class ServiceAccountAuthenticator:
    """Judges bearers that are JWTs of one of our issuers. Make a new one when keys or issuers change."""

    name = "service-account"
    judges = SECRET

    def __init__(self, issuers: Collection[str], keys: VerificationKeys, max_remembered: int = MAX_REMEMBERED) -> None:
        self._issuers = tuple(issuers)
        self._keys = keys
        self._verified: OrderedDict[bytes, _Token] = OrderedDict()
        self._max_remembered = max_remembered

    def authenticate(self, credentials: Credentials, views: Views, now: datetime, audiences: Sequence[str]) -> Verdict:
        if credentials.bearer is None:
            return _NOT_MINE
        raw = credentials.bearer.reveal()
        digest = hashlib.sha256(raw).digest()
        token = self._verified.get(digest)
        if token is not None and token.since <= now <= token.until:
            self._verified.move_to_end(digest)
        else:
            judged = self._judge(raw, now)
            if not isinstance(judged, _Token):
                return judged
            token = judged
            self._remember(digest, token)
        valid_for = (
            tuple(audience for audience in token.audiences if audience in audiences) if audiences else token.audiences
        )
        if not valid_for:
            return Rejected(WRONG_AUDIENCE, token.user.username)
        for one in token.live:
            reason = problem(views, one.plural, one.namespace, one.name, one.uid, now)
            if reason is not None:
                return Rejected(reason, f"{token.user.username}: {one.plural} {one.name}")
        return Accepted(token.user, valid_for)

    def _judge(self, raw: bytes, now: datetime) -> _Token | Verdict:
        text = raw.decode("utf-8", "replace")
        try:
            _, unverified = peek(text)
        except TokenRefusedError:
            return _NOT_MINE
        issuer = unverified.get("iss")
        if not isinstance(issuer, str) or issuer not in self._issuers:
            return _NOT_MINE
        try:
            claims = verify_jwt(text, self._keys, now, issuers=self._issuers)
        except TokenRefusedError as error:
            return Rejected(error.code, str(error))
        token = _read(claims, now)
        return Rejected(MALFORMED_CLAIMS) if token is None else token

    def _remember(self, digest: bytes, token: _Token) -> None:
        self._verified[digest] = token
        self._verified.move_to_end(digest)
        if len(self._verified) > self._max_remembered:
            self._verified.popitem(last=False)


def _read(claims: Claims, now: datetime) -> _Token | None:
    """What the claims say, or None when they do not say it right (rule 3)."""
    private = claims.get("kubernetes.io")
    if not isinstance(private, dict):
        return None
    namespace, account = private.get("namespace"), _reference(private, "serviceaccount")
    if not isinstance(namespace, str) or not namespace or account is None or not account[1]:
        return None
    username = service_account_username(namespace, account[0])
    audiences = claims.get("aud")
    audiences = [audiences] if isinstance(audiences, str) else audiences
    if claims.get("sub") != username or not isinstance(audiences, list):
        return None
    live = [_Live("serviceaccounts", namespace, *account)]
    extra: dict[str, tuple[str, ...]] = {}
    if isinstance(claims.get("jti"), str) and claims["jti"]:
        extra[CREDENTIAL_ID] = (f"JTI={claims['jti']}",)
    for kind, plural in (_SECRET_BOUND, _POD_BOUND, _NODE_BOUND):
        if kind not in private:
            continue
        reference = _reference(private, kind)
        if reference is None:
            return None
        name, uid = reference
        if kind != "node" or "pod" not in private:
            live.append(_Live(plural, "" if kind == "node" else namespace, name, uid))
        if kind != "secret":
            extra[f"{EXTRA_PREFIX}{kind}-name"] = (name,)
            if uid:
                extra[f"{EXTRA_PREFIX}{kind}-uid"] = (uid,)
    return _Token(
        user=UserInfo(username, account[1], service_account_groups(namespace), MappingProxyType(extra)),
        audiences=tuple(audience for audience in audiences if isinstance(audience, str)),
        live=tuple(live),
        since=now,
        until=datetime.fromtimestamp(claims["exp"], UTC),  # the minute of leeway after it is verified anew each time
    )


def _reference(private: dict[str, Any], kind: str) -> tuple[str, str] | None:
    """(name, uid) of an object a claim names; the uid may be missing (a node that was gone)."""
    found = private.get(kind)
    if not isinstance(found, dict):
        return None
    name, uid = found.get("name"), found.get("uid", "")
    return (name, uid) if isinstance(name, str) and name and isinstance(uid, str) else None
