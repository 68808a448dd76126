"""Bootstrap tokens: sign cluster-info with each, and delete those that expired."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from mooring.api.mooring import tombstones
from mooring.api.view import Views, readable
from mooring.apimachinery.schema import Obj
from mooring.controllers.actions import Action, Delete, Entropy, Key, Requeue, Update
from mooring.trust.bootstraptoken import tokensecret
from mooring.trust.bootstraptoken.token import TokenError
from mooring.trust.bootstraptoken.tokensecret import NAMESPACE, SECRET_TYPE, expiration
from mooring.trust.discovery import clusterinfo

# Recognition of bootstrap token Secrets and their expiration, for the token controllers.
#
# Rules kept here (docs/protocol/bootstrap-tokens.md#token-cleaner, docs/protocol/cluster-info.md#bootstrap-signer):
# * Type and namespace decide, as upstream, so that events of the other Secrets of a cluster enqueue nothing.
# * A token whose expiration cannot be parsed counts as one without expiration.

SECRETS = "secrets"


def is_token(secret: Obj) -> bool:
    """Return true when the Secret is a bootstrap token, well formed or not."""
    return secret.get("type") == SECRET_TYPE and secret["metadata"].get("namespace") == NAMESPACE


def expiration_of(secret: Obj) -> datetime | None:
    """Return the expiration of the token; None when it has none or it cannot be parsed."""
    try:
        return expiration(secret)
    except TokenError:
        return None


# bootstrap-signer-controller: keeps kube-public/cluster-info signed by every bootstrap token with usage signing.
#
# Rules kept here (docs/protocol/cluster-info.md#bootstrap-signer):
# * Changes of the ConfigMap (not its deletion) and of bootstrap tokens enqueue one key, so that a burst of token changes is
#   signed once. Nothing is written when the signatures are current, and the ConfigMap is never created.
# * Unlike upstream, the key is planned again when the next signing token expires, so that its signature is removed at that
#   time and not when the cleaner deletes the token.
# * The work per token is repeated for thousands of tokens at every change. So a token is read once, and expiry is read only from
#   tokens that sign.

CONFIG_MAPS = "configmaps"
CLUSTER_INFO: Key = ("", "")


@dataclass(frozen=True, slots=True)
class BootstrapSigner:
    """Signs cluster-info."""

    name: str = "bootstrap-signer-controller"
    watches: tuple[str, ...] = (CONFIG_MAPS, SECRETS)

    def keys(self, plural: str, obj: Obj, deleted: bool, views: Views) -> Sequence[Key]:
        if plural == SECRETS:
            return (CLUSTER_INFO,) if is_token(obj) else ()
        metadata = obj["metadata"]
        is_cluster_info = metadata["name"] == clusterinfo.NAME and metadata.get("namespace") == clusterinfo.NAMESPACE
        return (CLUSTER_INFO,) if is_cluster_info and not deleted else ()

    def plan(self, key: Key, views: Views, now: datetime, entropy: Entropy) -> Sequence[Action]:
        config_map = views[CONFIG_MAPS].get(clusterinfo.NAME, clusterinfo.NAMESPACE)
        if config_map is None:
            return ()
        tokens = [
            secret
            for secret in readable(views[SECRETS]).list(tokensecret.NAMESPACE)
            if is_token(secret) and not _has_ended(secret, views)
        ]
        actions: list[Action] = []
        changed = clusterinfo.signed(config_map, tokens, now)
        if changed is not None:
            actions.append(Update(CONFIG_MAPS, changed))
        ends = [end for secret in tokens if (end := expiration_of(secret)) is not None and end > now]
        if ends:
            actions.append(Requeue(min(ends)))
        return actions


def _has_ended(secret: Obj, views: Views) -> bool:
    """Return whether a token came back with a store that was restored, after it had been deleted."""
    if views[CONFIG_MAPS].problem(tombstones.NAME, tombstones.NAMESPACE):
        return False  # nothing is issued for it
    name = secret["metadata"]["name"].removeprefix(tokensecret.NAME_PREFIX)
    found = tombstones.ended(views, tombstones.Tombstone.TOKEN, name)
    return found is not None and secret["metadata"].get("uid") in tombstones.uids_of(found)


# token-cleaner-controller: deletes expired bootstrap tokens.
#
# Rules kept here (docs/protocol/bootstrap-tokens.md#token-cleaner):
# * A Secret of the token type in kube-system is deleted when its expiration has passed or cannot be parsed; name, id and usages
#   do not matter. A token with a future expiration is planned again at that moment.
# * A deletion for an expiration that cannot be parsed is logged with the reason: the token may be minutes old.
# * The delete carries uid and resourceVersion: a token that was just prolonged or recreated stays.
# * Deletion is hygiene: authenticator and signer check the expiration themselves.


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
