"""bootstrap-signer-controller: keeps kube-public/cluster-info signed by every bootstrap token with usage signing.

Rules kept here (docs/protocol/cluster-info.md#bootstrap-signer):
* Changes of the ConfigMap (not its deletion) and of bootstrap tokens enqueue one key, so that a burst of token changes is signed
  once. Nothing is written when the signatures are current, and the ConfigMap is never created.
* Unlike upstream, the key is planned again when the next signing token expires, so that its signature is removed at that
  time and not when the cleaner deletes the token.
* The work per token is repeated for thousands of tokens at every change. So a token is read once, and expiry is read only from
  tokens that sign.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from mooring.api.mooring import ends
from mooring.api.view import Views, readable
from mooring.apimachinery.schema import Obj
from mooring.controllers.actions import Action, Entropy, Key, Requeue, Update
from mooring.controllers.bootstrap.tokensecrets import SECRETS, expiration_of, is_token
from mooring.trust.bootstraptoken import tokensecret
from mooring.trust.discovery import clusterinfo

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
    if views[CONFIG_MAPS].problem(ends.NAME, ends.NAMESPACE):
        return False  # nothing is issued for it
    name = secret["metadata"]["name"].removeprefix(tokensecret.NAME_PREFIX)
    found = ends.ended(views, ends.End.TOKEN, name)
    return found is not None and secret["metadata"].get("uid") in ends.uids_of(found)
