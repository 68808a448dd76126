"""serviceaccount-token-controller: signs service account tokens into Secrets, and deletes Secrets of absent accounts.

Rules kept here (docs/protocol/service-account-tokens.md#secrets-for-legacy-tokens):
* A Secret of type kubernetes.io/service-account-token belongs to the account in its annotation. It gets the annotation with the
  account's uid, and the missing data: the token, its namespace, and the cluster's CA bundle, which is also corrected.
* It is deleted with its account, and when its account never existed or has another uid. A Secret younger than `GRACE_PERIOD` waits,
  because its account may be created right after it.
* When a Secret is gone, its account's reference to it is removed.
* An immutable Secret cannot be filled in and is left alone. Without signing keys nothing is signed; Secrets of absent accounts are
  still deleted.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from mooring.api.core.secret import SERVICE_ACCOUNT_NAME, SERVICE_ACCOUNT_TOKEN
from mooring.api.mooring import ends
from mooring.api.view import Views
from mooring.apimachinery.schema import Obj
from mooring.clock import parse_rfc3339
from mooring.controllers.actions import Action, Delete, Entropy, Key, Requeue, Update
from mooring.pki.jwt.serviceaccount import LegacyToken
from mooring.pki.jwt.token import TokenKeys
from mooring.pki.rootca import RootCa

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
        if ends.refusal(views):
            return (Requeue(now + ends.UNSETTLED_FOR),)
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
