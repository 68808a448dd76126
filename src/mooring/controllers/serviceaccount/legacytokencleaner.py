"""legacy-serviceaccount-token-cleaner-controller: marks unused auto-generated token Secrets invalid, and deletes them a year later.

Rules kept here (docs/protocol/service-account-tokens.md#secrets-for-legacy-tokens; KEP-2799), with days in UTC:
* Only auto-generated Secrets are cleaned: token Secrets that their ServiceAccount lists. A Secret that a Pod refers to is left
  alone.
* A Secret is unused when it was created and last used more than `PERIOD` ago, and uses were tracked during all that time.
* An unused Secret gets the label `legacy-token-invalid-since` with the current day, and its token is refused from then on. It is
  deleted when it is still unused `PERIOD` later. A use of a marked Secret is tracked, too, and keeps it.
* A mark that cannot be parsed is written again; a last use that cannot be parsed counts as today. Every Secret is planned daily.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from mooring.api.core.pod.references import references
from mooring.api.view import Views
from mooring.apimachinery.schema import Obj
from mooring.authn.lastuses import LAST_USED
from mooring.authn.serviceaccount import INVALID_SINCE
from mooring.clock import parse_rfc3339
from mooring.controllers.actions import Action, Delete, Entropy, Key, Requeue, Update
from mooring.controllers.serviceaccount.legacytokentracking import CONFIG_MAPS, parse_day, tracked_since
from mooring.controllers.serviceaccount.tokens import ACCOUNTS, SECRETS, account_of, is_account_token

PODS = "pods"
PERIOD = timedelta(days=365)
"""Default of kube-controller-manager's `--legacy-service-account-token-clean-up-period`."""
DAILY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class LegacyTokenCleaner:
    """Marks unused Secrets, then deletes them."""

    period: timedelta = PERIOD
    name: str = "legacy-serviceaccount-token-cleaner-controller"
    watches: tuple[str, ...] = (SECRETS, ACCOUNTS, PODS, CONFIG_MAPS)

    def keys(self, plural: str, obj: Obj, deleted: bool, views: Views) -> Sequence[Key]:
        namespace = obj["metadata"].get("namespace", "")
        if deleted or plural in (PODS, CONFIG_MAPS):
            return ()  # the daily plan is early enough
        if plural == SECRETS:
            return ((namespace, obj["metadata"]["name"]),) if is_account_token(obj) else ()
        return [(namespace, one["name"]) for one in obj.get("secrets") or () if one.get("name")]

    def plan(self, key: Key, views: Views, now: datetime, entropy: Entropy) -> Sequence[Action]:
        namespace, name = key
        secret = views[SECRETS].get(name, namespace)
        if secret is None or secret["metadata"].get("deletionTimestamp") or not _is_auto_generated(secret, views):
            return ()
        again = Requeue(now + DAILY)
        if not self._is_unused(secret, views, now) or _is_referenced_by_pod(name, namespace, views):
            return (again,)
        metadata = secret["metadata"]
        labels = metadata.get("labels") or {}
        marked = parse_day(labels.get(INVALID_SINCE))
        if marked is None:
            changed = {**labels, INVALID_SINCE: now.date().isoformat()}
            return (Update(SECRETS, {**secret, "metadata": {**metadata, "labels": changed}}), again)
        if marked + self.period > now.date():
            return (again,)
        return (Delete.of(SECRETS, secret),)

    def _is_unused(self, secret: Obj, views: Views, now: datetime) -> bool:
        """Return true when the token is known to be unused for the whole period."""
        metadata = secret["metadata"]
        before = now.date() - self.period
        used = (metadata.get("labels") or {}).get(LAST_USED)
        days = (
            tracked_since(views),
            parse_rfc3339(metadata["creationTimestamp"]).date(),
            parse_day(used) if used else before,
        )
        return all(one is not None and one <= before for one in days)


def _is_auto_generated(secret: Obj, views: Views) -> bool:
    """Return true when the Secret is a token Secret that its ServiceAccount lists."""
    if not is_account_token(secret):
        return False
    metadata = secret["metadata"]
    account = views[ACCOUNTS].get(account_of(secret), metadata["namespace"]) or {}
    return any(one.get("name") == metadata["name"] for one in account.get("secrets") or ())


def _is_referenced_by_pod(name: str, namespace: str, views: Views) -> bool:
    return any((SECRETS, name) in references(pod) for pod in views[PODS].list(namespace))
