"""Bootstrap tokens: `<id>.<secret>`, held by Secrets in kube-system.

Rules kept here (docs/protocol/bootstrap-tokens.md#authentication):
1. A bearer token of another form is not mine.
2. `mooring.trust.bootstraptoken.tokensecret` judges the rest at the time of the request, from the view. A deleted or expired
   token is rejected at once, because nothing is cached. While this server cannot say which tokens had been deleted before the
   store was restored, none counts.
3. A token with an unknown id may belong to another cluster, so that a remote service may still judge it.
4. Networks of a token are compared with the address of the connection, never with a header: X-Forwarded-For is the client's word.
5. The user is `system:bootstrap:<id>` with the token's groups, no uid and no extra. The token names no audience.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from mooring.api.mooring import tombstones
from mooring.api.view import Views
from mooring.authn.credentials import SECRET, Credentials
from mooring.authn.lastuses import LastUses
from mooring.authn.reasons import UNREADABLE
from mooring.authn.verdict import Accepted, NotMine, Rejected, Verdict
from mooring.identity import BOOTSTRAP_USER_PREFIX, UserInfo
from mooring.settings.declaration import BOOLEAN, Settings, setting
from mooring.trust.bootstraptoken import tokensecret
from mooring.trust.bootstraptoken.token import looks_like_token, parse_token

_NOT_MINE = NotMine()


class BootstrapTokenAuthenticator:
    """Judges bearer tokens of the form of a bootstrap token, and notes their uses."""

    name = "bootstrap-token"
    judges = SECRET

    def __init__(self, uses: LastUses) -> None:
        self._uses = uses

    def authenticate(self, credentials: Credentials, views: Views, now: datetime, audiences: Sequence[str]) -> Verdict:
        if credentials.bearer is None:
            return _NOT_MINE
        text = credentials.bearer.reveal().decode("utf-8", "surrogateescape")
        if not looks_like_token(text):
            return _NOT_MINE
        token = parse_token(text)
        found = views["secrets"].get(tokensecret.secret_name(token.id), tokensecret.NAMESPACE)
        # A restored store may have a token that was deleted after the backup.
        gone = tombstones.ended(views, tombstones.Tombstone.TOKEN, token.id) if found is not None else None
        if found is not None and gone is not None and found["metadata"].get("uid") in tombstones.uids_of(gone):
            return Rejected(tokensecret.UNKNOWN_ID, f"token {token.id} was deleted before the store was restored")
        # Judged at the time of the request and never from memory: a deleted or expired token is rejected immediately.
        reason, groups = tokensecret.authenticate_secret(found, token, now, credentials.source)
        if reason != tokensecret.OK:
            detail = tokensecret.refusal_detail(found, token.id, reason, now, credentials.source)
            # A token with an unknown id may belong to another cluster, so a remote service may still judge it.
            return Rejected(reason, detail, form_only=reason == tokensecret.UNKNOWN_ID)
        # After the other checks: a token that is wrong anyway is a rejection of the client and not an outage.
        if problem := tombstones.unknown(views, tombstones.Tombstone.TOKEN):
            return Rejected(UNREADABLE, problem, is_undecided=True)
        # Only the first judgement of a request notes the use.
        if found is not None and not credentials.dry_run:
            self._uses.note_bootstrap_token(found, now)
        return Accepted(UserInfo(BOOTSTRAP_USER_PREFIX + token.id, groups=groups))


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapTokenSettings(Settings):
    """Bootstrap tokens, with which machines join."""

    heading: ClassVar[str] = "Bootstrap tokens"

    enable_bootstrap_token_auth: bool = setting(
        BOOLEAN,
        default=True,
        meaning="Accept bootstrap tokens, as kubeadm sets kube-apiserver up. Without them no machine joins with a token.",
    )
