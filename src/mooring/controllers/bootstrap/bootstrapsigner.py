"""bootstrap-signer-controller: keeps kube-public/cluster-info signed by every token that may sign.

Rules kept here (docs/protocol/cluster-info.md#bootstrap-signer):
* Woken by the ConfigMap (not by its deletion) and by bootstrap tokens; everything is one key, so that a burst of token changes
  is signed once. Nothing is written when the signatures are right, and the ConfigMap is never created.
* Better than upstream: planned again when the next signing token expires, so that a signature goes with its token's time and
  does not wait for the cleaner.
* What one token costs is paid for each of thousands at every change, so a token is read once and expiry is read only of
  tokens that sign.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from mooring.api.view import Views
from mooring.apimachinery.schema import Obj
from mooring.controllers.actions import Action, Entropy, Key, Requeue, Update
from mooring.controllers.bootstrap.tokensecrets import SECRETS, expires, is_token
from mooring.trust.bootstraptoken import record as tokenrecord
from mooring.trust.discovery import clusterinfo

CONFIG_MAPS = "configmaps"
EVERYTHING: Key = ("", "")


@dataclass(frozen=True, slots=True)
class BootstrapSigner:
    """Signs cluster-info."""

    name: str = "bootstrap-signer-controller"
    watches: tuple[str, ...] = (CONFIG_MAPS, SECRETS)

    def keys(self, plural: str, obj: Obj, deleted: bool, views: Views) -> Sequence[Key]:
        if plural == SECRETS:
            return (EVERYTHING,) if is_token(obj) else ()
        metadata = obj["metadata"]
        ours = metadata["name"] == clusterinfo.NAME and metadata.get("namespace") == clusterinfo.NAMESPACE
        return (EVERYTHING,) if ours and not deleted else ()

    def plan(self, key: Key, views: Views, now: datetime, entropy: Entropy) -> Sequence[Action]:
        config_map = views[CONFIG_MAPS].get(clusterinfo.NAME, clusterinfo.NAMESPACE)
        if config_map is None:
            return ()
        tokens = [secret for secret in views[SECRETS].list(tokenrecord.NAMESPACE) if is_token(secret)]
        actions: list[Action] = []
        changed = clusterinfo.signed(config_map, tokens, now)
        if changed is not None:
            actions.append(Update(CONFIG_MAPS, changed))
        ends = [end for secret in tokens if (end := expires(secret)) is not None and end > now]
        if ends:
            actions.append(Requeue(min(ends)))
        return actions
