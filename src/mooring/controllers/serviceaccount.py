"""ServiceAccounts of namespaces, and the tokens that Secrets hold for them."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta

from mooring.api.core.poddefaults import references
from mooring.api.core.secret import SERVICE_ACCOUNT_NAME, SERVICE_ACCOUNT_TOKEN
from mooring.api.mooring import tombstones
from mooring.api.view import Views
from mooring.apimachinery.schema import Obj
from mooring.authn.lastuses import LAST_USED
from mooring.authn.serviceaccount import INVALID_SINCE
from mooring.clock import parse_rfc3339
from mooring.controllers.actions import Action, Create, Delete, Entropy, Key, Requeue, Update
from mooring.controllers.namespace import NAMESPACES, is_active
from mooring.pki.jwt.serviceaccount import LegacyToken
from mooring.pki.jwt.token import TokenKeys
from mooring.pki.pem import RootCa

# serviceaccount-controller: creates the ServiceAccount `default` in every namespace.
#
# Rules kept here (docs/protocol/namespaces.md#objects-of-every-namespace): every Active namespace has it, and a deleted one is
# created again. Its content belongs to the namespace's owner.

SERVICE_ACCOUNTS = "serviceaccounts"
NAME = "default"


@dataclass(frozen=True, slots=True)
class ServiceAccountController:
    """Creates default ServiceAccounts."""

    name: str = "serviceaccount-controller"
    watches: tuple[str, ...] = (NAMESPACES, SERVICE_ACCOUNTS)

    def keys(self, plural: str, obj: Obj, deleted: bool, views: Views) -> Sequence[Key]:
        metadata = obj["metadata"]
        if plural == NAMESPACES:
            return () if deleted else ((metadata["name"], NAME),)
        return ((metadata["namespace"], NAME),) if deleted and metadata["name"] == NAME else ()

    def plan(self, key: Key, views: Views, now: datetime, entropy: Entropy) -> Sequence[Action]:
        namespace, name = key
        if not is_active(namespace, views) or views[SERVICE_ACCOUNTS].get(name, namespace) is not None:
            return ()
        metadata = {"name": name, "namespace": namespace}
        return (Create(SERVICE_ACCOUNTS, {"kind": "ServiceAccount", "apiVersion": "v1", "metadata": metadata}),)


# serviceaccount-token-controller: signs service account tokens into Secrets, and deletes Secrets of absent accounts.
#
# Rules kept here (docs/protocol/service-account-tokens.md#secrets-for-legacy-tokens):
# * A Secret of type kubernetes.io/service-account-token belongs to the account in its annotation. It gets the annotation with the
#   account's uid, and the missing data: the token, its namespace, and the cluster's CA bundle, which is also corrected.
# * It is deleted with its account, and when its account never existed or has another uid. A Secret younger than `GRACE_PERIOD`
#   waits, because its account may be created right after it.
# * When a Secret is gone, its account's reference to it is removed.
# * An immutable Secret cannot be filled in and is left alone. Without signing keys nothing is signed; Secrets of absent accounts
#   are still deleted.

SECRETS, ACCOUNTS = "secrets", "serviceaccounts"
SERVICE_ACCOUNT_UID = "kubernetes.io/service-account.uid"
TOKEN, NAMESPACE, CA = "token", "namespace", "ca.crt"
GRACE_PERIOD = timedelta(seconds=2)
"""Clients that apply a Secret and its account together send both within this time."""


def is_account_token(secret: Obj) -> bool:
    """Return true when the type of the Secret is that of service account tokens."""
    return secret.get("type") == SERVICE_ACCOUNT_TOKEN


def account_of(secret: Obj) -> str:
    """Return the name of the account that a token Secret belongs to."""
    name: str = (secret["metadata"].get("annotations") or {}).get(SERVICE_ACCOUNT_NAME, "")
    return name


class TokenSecretIndex:
    """Index of token Secrets by their account, updated with every event of a Secret.

    With it, an event of an account plans the account's own Secrets without reading every Secret of the namespace. Entries are
    hints: the plan reads the Secret itself.
    """

    __slots__ = ("_accounts", "_names")

    def __init__(self) -> None:
        self._names: dict[Key, dict[str, None]] = {}
        self._accounts: dict[Key, Key] = {}

    def put(self, secret: Obj, deleted: bool) -> None:
        """Record the account of a Secret that was added, changed or deleted."""
        metadata = secret["metadata"]
        place = (metadata["namespace"], metadata["name"])
        before = self._accounts.pop(place, None)
        if before is not None:
            names = self._names[before]
            del names[place[1]]
            if not names:
                del self._names[before]
        if is_account_token(secret) and not deleted:
            account = (place[0], account_of(secret))
            self._accounts[place] = account
            self._names.setdefault(account, {})[place[1]] = None

    def of(self, namespace: str, account: str) -> Sequence[str]:
        """Return the names of the token Secrets of an account."""
        return tuple(self._names.get((namespace, account), ()))


@dataclass(frozen=True, slots=True)
class ServiceAccountTokenController:
    """Fills in and deletes token Secrets. `keys` updates the index, and reads it."""

    token_keys: TokenKeys | None
    root_ca: RootCa
    name: str = "serviceaccount-token-controller"
    watches: tuple[str, ...] = (SECRETS, ACCOUNTS)
    secrets: TokenSecretIndex = field(default_factory=TokenSecretIndex, compare=False)

    def keys(self, plural: str, obj: Obj, deleted: bool, views: Views) -> Sequence[Key]:
        metadata = obj["metadata"]
        namespace, name = metadata["namespace"], metadata["name"]
        if plural == ACCOUNTS:
            return [(namespace, secret) for secret in self.secrets.of(namespace, name)]
        self.secrets.put(obj, deleted)
        return ((namespace, name),) if is_account_token(obj) else ()

    def plan(self, key: Key, views: Views, now: datetime, entropy: Entropy) -> Sequence[Action]:
        namespace, name = key
        secret = views[SECRETS].get(name, namespace)
        if secret is None:
            return _remove_references(name, namespace, views)
        metadata = secret["metadata"]
        if not is_account_token(secret) or metadata.get("deletionTimestamp"):
            return ()
        account = views[ACCOUNTS].get(account_of(secret), namespace)
        if account is None:
            due = parse_rfc3339(metadata["creationTimestamp"]) + GRACE_PERIOD
            if now < due:
                return (Requeue(due),)
        uid = (metadata.get("annotations") or {}).get(SERVICE_ACCOUNT_UID)
        if account is None or (uid and uid != account["metadata"]["uid"]):
            return (Delete.of(SECRETS, secret),)
        if tombstones.refusal(views):
            return (Requeue(now + tombstones.UNSETTLED_FOR),)
        return self._fill_in(secret, account)

    def _fill_in(self, secret: Obj, account: Obj) -> Sequence[Action]:
        if self.token_keys is None or secret.get("immutable"):
            return ()
        metadata, uid = secret["metadata"], account["metadata"]["uid"]
        annotations = {**(metadata.get("annotations") or {}), SERVICE_ACCOUNT_UID: uid}
        data = dict(secret.get("data") or {})
        data[CA] = _base64(self.root_ca.pem)
        if not data.get(NAMESPACE):
            data[NAMESPACE] = _base64(metadata["namespace"].encode())
        if not data.get(TOKEN):
            token = LegacyToken(metadata["namespace"], metadata["name"], account["metadata"]["name"], uid)
            data[TOKEN] = _base64(self.token_keys.signer.sign(token.claims()).encode())
        if data == secret.get("data") and annotations == metadata.get("annotations"):
            return ()
        return (Update(SECRETS, {**secret, "metadata": {**metadata, "annotations": annotations}, "data": data}),)


def _remove_references(name: str, namespace: str, views: Views) -> list[Action]:
    """Return updates of the accounts that still refer to a deleted token Secret."""
    updates: list[Action] = []
    for account in views[ACCOUNTS].list(namespace):
        references = account.get("secrets") or []
        kept = [reference for reference in references if reference.get("name") != name]
        if len(kept) < len(references):
            changed = {key: value for key, value in account.items() if key != "secrets"}
            updates.append(Update(ACCOUNTS, {**changed, "secrets": kept} if kept else changed))
    return updates


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


# legacy-service-account-token-tracking: records the day since which this cluster tracks uses of tokens in Secrets.
#
# Rules kept here (docs/protocol/service-account-tokens.md#secrets-for-legacy-tokens; KEP-2799):
# * ConfigMap kube-system/kube-apiserver-legacy-service-account-token-tracking holds it as `since`, a day in UTC.
# * A missing ConfigMap is created. A day that cannot be parsed, or lies in the future, is replaced by today, because a token
#   whose uses were not tracked is not known to be unused. Tomorrow is accepted, since the clock of another server may be ahead.

CONFIG_MAPS = "configmaps"
KUBE_SYSTEM, TRACKING = "kube-system", "kube-apiserver-legacy-service-account-token-tracking"
SINCE = "since"


def parse_day(text: str | None) -> date | None:
    """Parse a day such as `2026-01-02`; None for anything else."""
    try:
        found = date.fromisoformat(text or "")
    except ValueError:
        return None
    return found if found.isoformat() == text else None  # fromisoformat also accepts weeks, and days without dashes


def tracked_since(views: Views) -> date | None:
    """Return the day since which uses are tracked; None when unknown."""
    found = views[CONFIG_MAPS].get(TRACKING, KUBE_SYSTEM)
    return parse_day((found.get("data") or {}).get(SINCE)) if found else None


@dataclass(frozen=True, slots=True)
class LegacyTokenTracking:
    """Keeps the tracking ConfigMap."""

    name: str = "legacy-service-account-token-tracking"
    watches: tuple[str, ...] = (CONFIG_MAPS, "namespaces")

    def keys(self, plural: str, obj: Obj, deleted: bool, views: Views) -> Sequence[Key]:
        metadata = obj["metadata"]
        if plural == CONFIG_MAPS:
            relevant = (metadata["namespace"], metadata["name"]) == (KUBE_SYSTEM, TRACKING)
        else:  # without a ConfigMap, no other event would enqueue the key
            relevant = metadata["name"] == KUBE_SYSTEM and not deleted
        return ((KUBE_SYSTEM, TRACKING),) if relevant else ()

    def plan(self, key: Key, views: Views, now: datetime, entropy: Entropy) -> Sequence[Action]:
        today = now.date()
        data = {SINCE: today.isoformat()}
        found = views[CONFIG_MAPS].get(TRACKING, KUBE_SYSTEM)
        if found is None:
            metadata = {"name": TRACKING, "namespace": KUBE_SYSTEM}
            return (Create(CONFIG_MAPS, {"kind": "ConfigMap", "apiVersion": "v1", "metadata": metadata, "data": data}),)
        since = tracked_since(views)
        if since is not None and since <= today + timedelta(days=1):
            return ()
        if found.get("immutable"):
            return (Delete.of(CONFIG_MAPS, found),)
        return (Update(CONFIG_MAPS, {**found, "data": {**(found.get("data") or {}), **data}}),)


# legacy-serviceaccount-token-cleaner-controller: marks unused auto-generated token Secrets invalid, and deletes them a year
# later.
#
# Rules kept here (docs/protocol/service-account-tokens.md#secrets-for-legacy-tokens; KEP-2799), with days in UTC:
# * Only auto-generated Secrets are cleaned: token Secrets that their ServiceAccount lists. A Secret that a Pod refers to is left
#   alone.
# * A Secret is unused when it was created and last used more than `PERIOD` ago, and uses were tracked during all that time.
# * An unused Secret gets the label `legacy-token-invalid-since` with the current day, and its token is refused from then on. It
#   is deleted when it is still unused `PERIOD` later. A use of a marked Secret is tracked, too, and keeps it.
# * A mark that cannot be parsed is written again; a last use that cannot be parsed counts as today. Every Secret is planned
#   daily.

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
