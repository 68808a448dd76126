"""serviceaccount-token-controller: the tokens that Secrets hold.

Rules kept here (docs/protocol/service-account-tokens.md#secrets-for-legacy-tokens):
* A Secret of type kubernetes.io/service-account-token is its account's, which the annotation names. It gets the annotation with the
  account's uid, and as data what it lacks: the token, its namespace, and the cluster's CA, which is put right when it differs.
* It goes with its account, and so does one whose account never was, or is another one by now (by uid). A Secret that is newer than
  `PATIENCE` waits: its account may be made in the same breath.
* Of a Secret that is gone its account keeps no reference.
* One that is immutable cannot be filled in and is left alone. Nobody signs where there is no signer: then only what is over goes.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from mooring.api.core.secret import SERVICE_ACCOUNT_NAME, SERVICE_ACCOUNT_TOKEN
from mooring.api.view import Views
from mooring.apimachinery.schema import Obj
from mooring.clock import parse_rfc3339
from mooring.controllers.actions import Action, Delete, Entropy, Key, Requeue, Update
from mooring.pki.jwt.keys import TokenKeys
from mooring.pki.jwt.legacy import LegacyToken
from mooring.pki.rootca import RootCa

SECRETS, ACCOUNTS = "secrets", "serviceaccounts"
SERVICE_ACCOUNT_UID = "kubernetes.io/service-account.uid"
TOKEN, NAMESPACE, CA = "token", "namespace", "ca.crt"
PATIENCE = timedelta(seconds=2)
"""Whoever applies a Secret and its account together sends both within this."""


def is_account_token(secret: Obj) -> bool:
    """Whether this Secret is to hold a service account token."""
    return secret.get("type") == SERVICE_ACCOUNT_TOKEN


def account_of(secret: Obj) -> str:
    """The name of the account that a token Secret is for."""
    name: str = (secret["metadata"].get("annotations") or {}).get(SERVICE_ACCOUNT_NAME, "")
    return name


class TokenSecrets:
    """Index of token Secrets by their account, fed with every event of a Secret: an event of an account looks at its own tokens and
    not at every Secret of its namespace. A hint like any index: the plan reads the Secret itself."""

    __slots__ = ("_accounts", "_names")

    def __init__(self) -> None:
        self._names: dict[Key, dict[str, None]] = {}
        self._accounts: dict[Key, Key] = {}

    def put(self, secret: Obj, deleted: bool) -> None:
        """Note the account of a Secret that appeared, changed or was deleted."""
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
        """The names of the token Secrets of an account."""
        return tuple(self._names.get((namespace, account), ()))


@dataclass(frozen=True, slots=True)
class ServiceAccountTokens:
    """Fills in and deletes token Secrets. `keys` feeds the index, and reads it."""

    keys_of_tokens: TokenKeys | None
    root_ca: RootCa
    name: str = "serviceaccount-token-controller"
    watches: tuple[str, ...] = (SECRETS, ACCOUNTS)
    secrets: TokenSecrets = field(default_factory=TokenSecrets, compare=False)

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
            return _forgotten(name, namespace, views)
        metadata = secret["metadata"]
        if not is_account_token(secret) or metadata.get("deletionTimestamp"):
            return ()
        account = views[ACCOUNTS].get(account_of(secret), namespace)
        if account is None:
            patient_until = parse_rfc3339(metadata["creationTimestamp"]) + PATIENCE
            if now < patient_until:
                return (Requeue(patient_until),)
        said = (metadata.get("annotations") or {}).get(SERVICE_ACCOUNT_UID)
        if account is None or (said and said != account["metadata"]["uid"]):
            return (Delete(SECRETS, namespace, name, metadata["uid"], metadata["resourceVersion"]),)
        return self._filled_in(secret, account)

    def _filled_in(self, secret: Obj, account: Obj) -> Sequence[Action]:
        if self.keys_of_tokens is None or secret.get("immutable"):
            return ()
        metadata, uid = secret["metadata"], account["metadata"]["uid"]
        annotations = {**(metadata.get("annotations") or {}), SERVICE_ACCOUNT_UID: uid}
        data = dict(secret.get("data") or {})
        data[CA] = _encoded(self.root_ca.pem)
        if not data.get(NAMESPACE):
            data[NAMESPACE] = _encoded(metadata["namespace"].encode())
        if not data.get(TOKEN):
            token = LegacyToken(metadata["namespace"], metadata["name"], account["metadata"]["name"], uid)
            data[TOKEN] = _encoded(self.keys_of_tokens.signer.sign(token.claims()).encode())
        if data == secret.get("data") and annotations == metadata.get("annotations"):
            return ()
        return (Update(SECRETS, {**secret, "metadata": {**metadata, "annotations": annotations}, "data": data}),)


def _forgotten(name: str, namespace: str, views: Views) -> list[Action]:
    """Accounts without their references to a token Secret that is gone."""
    found: list[Action] = []
    for account in views[ACCOUNTS].list(namespace):
        references = account.get("secrets") or []
        kept = [reference for reference in references if reference.get("name") != name]
        if len(kept) < len(references):
            changed = {key: value for key, value in account.items() if key != "secrets"}
            found.append(Update(ACCOUNTS, {**changed, "secrets": kept} if kept else changed))
    return found


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
