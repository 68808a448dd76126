"""token-cleaner-controller: deletes expired bootstrap tokens.

Rules kept here (docs/protocol/bootstrap-tokens.md#token-cleaner):
* A Secret of the token type in kube-system is deleted when its expiration has passed or cannot be parsed; name, id and usages do
  not matter. A token with a future expiration is planned again at that moment.
* A deletion for an expiration that cannot be parsed is logged with the reason: the token may be minutes old.
* The delete carries uid and resourceVersion: a token that was just prolonged or recreated stays.
* Deletion is hygiene: authenticator and signer check the expiration themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from mooring.api.view import Views
from mooring.apimachinery.schema import Obj
from mooring.controllers.actions import Action, Delete, Entropy, Key, Requeue
from mooring.controllers.bootstrap.tokensecrets import SECRETS, is_token
from mooring.trust.bootstraptoken.token import TokenError
from mooring.trust.bootstraptoken.tokensecret import NAMESPACE, expiration


@dataclass(frozen=True, slots=True)
class TokenCleaner:
    """Deletes expired tokens."""

    name: str = "token-cleaner-controller"
    watches: tuple[str, ...] = (SECRETS,)

    def keys(self, plural: str, obj: Obj, deleted: bool, views: Views) -> Sequence[Key]:
        if deleted or not is_token(obj):
            return ()
        return ((obj["metadata"]["namespace"], obj["metadata"]["name"]),)

    def plan(self, key: Key, views: Views, now: datetime, entropy: Entropy) -> Sequence[Action]:
        namespace, name = key
        secret = views[SECRETS].get(name, namespace)
        if secret is None or not is_token(secret) or secret["metadata"].get("deletionTimestamp"):
            return ()
        try:
            end = expiration(secret)
        except TokenError as error:
            deleted = f"the token Secret {NAMESPACE}/{name} was deleted, because its expiration counts as past: {error}"
            return (Delete.of(SECRETS, secret, announcement=deleted),)
        if end is None:
            return ()
        return (Requeue(end),) if now < end else (Delete.of(SECRETS, secret),)
