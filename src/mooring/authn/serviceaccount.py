"""Tokens of ServiceAccounts: bound ones, legacy ones of Secrets, and how a bound one is issued."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any

from mooring.api.mooring import tombstones
from mooring.api.view import Views
from mooring.apimachinery.codec.json import base64_field
from mooring.apimachinery.schema import Obj
from mooring.authn.claims import ClaimsRefusedError
from mooring.authn.credentials import SECRET, Credentials
from mooring.authn.lastuses import LastUses
from mooring.authn.reasons import MALFORMED_CLAIMS, UNREADABLE, WRONG_AUDIENCE, Code
from mooring.authn.signedtokens import SignedTokens
from mooring.authn.verdict import Accepted, Rejected, Verdict
from mooring.authn.verdictcache import FOR_EVER, MAX_REMEMBERED
from mooring.clock import gap, parse_rfc3339, rfc3339
from mooring.errors import BadRequestError, ConflictError, InvalidError, NotFoundError, invalid
from mooring.identity import CREDENTIAL_ID, UserInfo, service_account_groups, service_account_username
from mooring.pki.jwt.keyset import KeySet
from mooring.pki.jwt.serviceaccount import LEGACY_ISSUER, Bound, LegacyToken, bound_claims, read_legacy
from mooring.pki.jwt.token import Claims, TokenSigner, audiences, time_claim
from mooring.secret import Secret

GONE = Code("bound-object-gone")
REPLACED = Code("bound-object-replaced")
DELETED = Code("bound-object-deleted")
UNKNOWN_KIND = Code("bound-object-unknown-kind")
INVALIDATED = Code("invalidated")


# Check that the object which a credential is bound to still exists (docs/protocol/service-account-tokens.md#bound-tokens).
#
# Rules kept here: the object exists, has the uid that the credential names, and was not deleted longer than a grace period ago: a
# Pod that shuts down may still call for a minute. A Node that came back with a restored store is as good as gone. Where an object
# cannot be read, the credential is undecided. The detail of a rejection names the object.

NODES = "nodes"
GRACE = timedelta(seconds=60)
NO_GRACE = timedelta.min


@dataclass(frozen=True, slots=True)
class Live:
    """One object that must be there, with this uid."""

    plural: str
    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.plural} {self.namespace}/{self.name}" if self.namespace else f"{self.plural} {self.name}"


def problem(views: Views, live: Live, now: datetime, grace: timedelta = GRACE) -> Rejected | None:
    """Return the rejection of the credential, or None when the object exists."""
    view = views.get(live.plural)
    if view is None:
        return Rejected(UNKNOWN_KIND, f"{live}: this server keeps no {live.plural}")
    obj = view.get(live.name, live.namespace)
    if obj is None and (trouble := view.problem(live.name, live.namespace)):
        return Rejected(UNREADABLE, f"{live} cannot be read: {trouble}", is_undecided=True)
    if obj is None:
        return Rejected(GONE, f"{live} is not there any more")
    uid = obj["metadata"].get("uid")
    if uid != live.uid:
        return Rejected(REPLACED, f"{live} is another one now: its uid is {uid}, the token is for {live.uid or 'none'}")
    if live.plural == NODES and (rejected := _ended_node(views, live)):
        return rejected
    deleted = obj["metadata"].get("deletionTimestamp")
    if not deleted:
        return None
    late = now - parse_rfc3339(deleted)
    return Rejected(DELETED, f"{live} was deleted {gap(max(late, timedelta(0)))} ago") if late > grace else None


def _ended_node(views: Views, live: Live) -> Rejected | None:
    """Return the rejection for a Node that was deleted before the store was restored, or where that cannot be known."""
    remembered = tombstones.ended(views, tombstones.Tombstone.NODE, live.name)
    if remembered is not None and (live.uid in tombstones.uids_of(remembered) or not remembered.get("uid")):
        return Rejected(GONE, f"{live} was deleted before the store was restored")
    problem = tombstones.unknown(views, tombstones.Tombstone.NODE)
    return Rejected(UNREADABLE, problem, is_undecided=True) if problem else None


# Bound service account tokens.
#
# Rules kept here (docs/protocol/service-account-tokens.md#bound-tokens; KEP-1205, KEP-4193):
# 1. A bearer token that is not a JWT, or of a foreign issuer, is not mine.
# 2. Signature, algorithm, key id and times are judged once (`mooring.authn.signedtokens`).
# 3. Claims must hold namespace, service account and uid, and `sub` must agree with them.
# 4. The token must be valid for one of the requested audiences.
# 5. On every request, the views must hold the service account with the uid of the token, and the Secret, Pod or Node that it is
#    bound to. The Node of a token that is bound to a Pod is information only.
# 6. Extra: `credential-id` is `JTI=<jti>`; Pod and Node stand there by name and uid.
# 7. A token with an extended life (`warnafter`) is accepted after that time, and the audit record marks it as stale.
# 8. Null in place of an object or of a uid is an absent one, and so is a `warnafter` of 0, as in kube-apiserver.

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
        self._tokens = SignedTokens(issuers, keys, _read_bound_claims, max_remembered=max_remembered)

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


def _read_bound_claims(claims: Claims) -> tuple[_Token, datetime]:
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
        # The Node of a token that is bound to a Pod is information: its deletion does not revoke the token (rule 5).
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


# Service account tokens that Secrets hold: they never expire, and are revoked by deleting the Secret or its account.
#
# Rules kept here (docs/protocol/service-account-tokens.md#legacy-tokens; KEP-2799):
# 1. A bearer token that is not a JWT, or of another issuer than `kubernetes/serviceaccount`, is not mine.
# 2. A key of the cluster has signed it (`mooring.authn.signedtokens`). `exp` and `nbf` are checked where the token has them.
# 3. Unless lookup is off: the Secret exists, is not being deleted, and its data `token` equals this token, compared in constant
#    time. The account exists, is not being deleted, and has the uid of the token. This is read from the views on every request.
# 4. A Secret with the label `legacy-token-invalid-since` is rejected.
# 5. The token is valid for every audience of the API, and for no other. A token that names audiences is valid for those alone,
#    also when the only one is the empty text.
# 6. A use is noted for the label `legacy-token-last-used`, also of a rejected token, because a client still depends on it.
# 7. A caller with an autogenerated token, whose account lists the Secret, gets a warning.

INVALID_SINCE = "kubernetes.io/legacy-token-invalid-since"
LEGACY_TOKEN = "authentication.k8s.io/legacy-token"  # noqa: S105 - an annotation's name, not a password
AUTOGENERATED_SECRET = "authentication.k8s.io/legacy-token-autogenerated-secret"  # noqa: S105 - likewise
WARNING = (
    "this service account token was generated by itself and kept in a Secret; use tokens of the TokenRequest API, or of a Secret "
    "that was made for the purpose"
)
TOKEN_KEY = "token"  # noqa: S105 - the name of a key of a Secret

_NO_SECRET: Obj = {"data": {TOKEN_KEY: ""}}


def _read_legacy_claims(claims: Claims) -> tuple[LegacyToken, datetime | None]:
    """Return the content of the claims. Raises ClaimsRefusedError when it is wrong."""
    token = read_legacy(claims)
    if isinstance(token, str):
        raise ClaimsRefusedError(MALFORMED_CLAIMS, token)
    timed = claims.keys() & {"exp", "nbf", "iat"}
    return token, None if timed else FOR_EVER  # with a time in it, it is verified each time


class LegacyServiceAccountAuthenticator:
    """Judges bearer tokens that Secrets hold. `audiences`: those of the API."""

    name = "legacy-service-account"
    judges = SECRET

    def __init__(
        self,
        keys: KeySet,
        audiences: Sequence[str],
        uses: LastUses,
        lookup: bool = True,
        max_remembered: int = MAX_REMEMBERED,
    ) -> None:
        self._tokens = SignedTokens(
            (LEGACY_ISSUER,), keys, _read_legacy_claims, require_expiry=False, max_remembered=max_remembered
        )
        self._audiences = tuple(audiences)
        self._uses = uses
        self._lookup = lookup

    def replace(self, keys: KeySet) -> None:
        """Verify with these keys from now on, and no others."""
        self._tokens.replace(keys)

    def authenticate(self, credentials: Credentials, views: Views, now: datetime, audiences: Sequence[str]) -> Verdict:
        token = self._tokens.judge(credentials.bearer, now)
        if not isinstance(token, LegacyToken):
            return token
        named, wanted = token.audiences or self._audiences, audiences or self._audiences
        valid_for = tuple(audience for audience in named if audience in wanted)
        if not valid_for:
            detail = f"good for {', '.join(named) or 'no audience'}, wants audience {' or '.join(wanted)}"
            return Rejected(WRONG_AUDIENCE, f"{token.username}: {detail}")
        user = UserInfo(token.username, token.uid, service_account_groups(token.namespace))
        if not self._lookup:
            return Accepted(user, valid_for)
        assert credentials.bearer is not None  # it has been verified
        uses = None if credentials.dry_run else self._uses
        refused = self._look_up(token, credentials.bearer, views, now, uses)
        return refused or self._accepted(user, token, views, valid_for)

    def _look_up(
        self, token: LegacyToken, shown: Secret, views: Views, now: datetime, uses: LastUses | None
    ) -> Rejected | None:
        """Return the rejection by the stored objects (rules 3, 4 and 6), or None."""
        kept = views["secrets"].get(token.secret, token.namespace)
        uid = kept["metadata"].get("uid", "") if kept else ""
        secret = Live("secrets", token.namespace, token.secret, uid)
        account = Live("serviceaccounts", token.namespace, token.account, token.uid)
        refused = problem(views, secret, now, NO_GRACE)
        # Compared whatever else is wrong: the time that a refusal takes must not tell a client what is wrong.
        same = shown.matches(_stored_token(kept or _NO_SECRET))
        if refused is None and not same:
            refused = Rejected(REPLACED, f"{secret} holds another token now")
        refused = refused or problem(views, account, now, NO_GRACE)
        if refused is not None:
            return replace(refused, detail=f"{token.username}: {refused.detail}")
        assert kept is not None  # it was looked at
        if uses is not None:
            uses.note(kept, now)
        since = (kept["metadata"].get("labels") or {}).get(INVALID_SINCE)
        if not since:
            return None
        detail = f"{secret} was not used for long and is marked invalid since {since}; remove the label {INVALID_SINCE} to allow it"
        return Rejected(INVALIDATED, f"{token.username}: {detail}")

    def _accepted(self, user: UserInfo, token: LegacyToken, views: Views, audiences: tuple[str, ...]) -> Accepted:
        annotations = ((LEGACY_TOKEN, token.username),)
        account = views["serviceaccounts"].get(token.account, token.namespace) or {}
        if all(reference.get("name") != token.secret for reference in account.get("secrets") or ()):
            return Accepted(user, audiences, annotations=annotations)
        return Accepted(user, audiences, (WARNING,), (*annotations, (AUTOGENERATED_SECRET, token.secret)))


def _stored_token(secret: Obj) -> bytes:
    """Return the token of a Secret, b"" without one."""
    return base64_field((secret.get("data") or {}).get(TOKEN_KEY))


# TokenRequest: issues a bound token for a service account.
#
# Rules kept here (docs/protocol/service-account-tokens.md#tokenrequest; KEP-1205):
# 1. `mooring.api.reviews` has defaulted and validated the request. `spec.audiences` defaults to the server's.
# 2. Name and namespace in the request's metadata, when given, must be those of the service account (422). Another uid than the
#    account's is 409; no account is 404.
# 3. A bound object is a Pod, Secret or Node of `v1` that exists (404) and has the given uid (409). A Pod belongs to the service
#    account. Other kinds are 400, and so is a reference without a kind or name.
# 4. A life longer than the server allows is shortened, with a warning.
# 5. The token carries `iss sub aud exp iat nbf jti` and the `kubernetes.io` claim. The answer carries the token, its end, and
#    name, namespace and uid of the account.
# 6. The token that every Pod gets (bound to it, for the API alone, for exactly 3607 seconds) lives a year, so that a program
#    which reads its file once continues to work. `warnafter` and the answer still say 3607 seconds.

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
    # The token of every Pod lives longer, so that a program which reads its file once continues to work (rule 6).
    automatic = seconds == AUTOMATIC_SECONDS and "pod" in bound and set(audiences) <= set(issuance.audiences)
    extended = automatic and issuance.extend
    # The longest life that the server allows bounds the extended life, too.
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
        # A use after this moment is marked in the audit record: the program does not read its file again.
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
