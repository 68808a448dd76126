"""Two machines with one identity: the controller that reports them, and the issuance check that holds their requests.

Rules kept here (docs/names-and-membership.md#one-machine-for-each-name):
* `mooring.api.mooring.uniqueness` judges. The controller adds reports of the Node to the evidence, and writes the condition
  DuplicateIdentity of the NodeIdentity with an Event and a line of the log, once for each change.
* `--duplicate-identity=hold`: a request that one of the two machines makes by itself waits for a person, and says which of the two
  made it. A token that names the node decides as before: an administrator gave it to one machine.
* `--duplicate-identity=end`: the certificates of both are revoked once, after the condition is written, which survives a crash in
  between. A certificate that is issued later counts.
* Under `report`, the default, a copy of a machine's files changes nothing for the machine that they were copied from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from mooring.api.certificates.requeststate import presented_certificate
from mooring.api.core.event import new_event
from mooring.api.mooring import certificaterevocation
from mooring.api.mooring.nodeidentity import PLURAL, keys_of, uses_of
from mooring.api.mooring.uniqueness import (
    DUPLICATE,
    ENDS_BOTH,
    boot_of,
    condition_of,
    has_expired,
    is_duplicate,
    is_suspect,
    with_boot,
    with_condition,
)
from mooring.api.objectmeta import spec_of
from mooring.api.paths import API_VERSION
from mooring.api.view import Views
from mooring.apimachinery.schema import Obj
from mooring.authn.x509 import READ_PLURALS, rejection
from mooring.clock import parse_rfc3339, rfc3339
from mooring.controllers.actions import Action, Create, Entropy, Key, Requeue, Update
from mooring.controllers.certificates.issuance import CheckResult, Hold, PendingIssue
from mooring.identity import BOOTSTRAP_USER_PREFIX, JOIN_RULE_PREFIX, NODE_PREFIX
from mooring.pki.x509.clientcertificate import PathCertificate, RecordedCertificate
from mooring.settings.nodes import END, HOLD

NODES, REVOCATIONS = "nodes", certificaterevocation.PLURAL
LOOK = timedelta(minutes=1)
"""Time after which an identity with evidence is judged again: one side may have expired, or have gone back for long enough."""
REVOKED_TEXT = "two machines used the identity"


@dataclass(frozen=True, slots=True)
class DuplicateIdentityController:
    """Keeps the condition DuplicateIdentity of all NodeIdentities."""

    policy: str
    reads_denylist: bool = True
    """False where the API server does not tell who used which certificate: there is nothing that could be revoked."""
    name: str = "duplicate-identity-controller"
    _boots: dict[str, str] = field(default_factory=dict, repr=False, compare=False)
    """Boot of the last report of each Node: a heartbeat enqueues nothing."""

    @property
    def watches(self) -> tuple[str, ...]:
        more = tuple(one for one in READ_PLURALS if one not in (PLURAL, NODES)) if self.reads_denylist else ()
        return (PLURAL, NODES, *more)

    def keys(self, plural: str, obj: Obj, deleted: bool, views: Views) -> Sequence[Key]:
        name = obj["metadata"]["name"]
        if plural == PLURAL:
            return () if deleted else (("", name),)
        if plural != NODES:
            return ()
        if deleted:
            self._boots.pop(name, None)
            return ()
        boot = boot_of(obj)
        if self._boots.get(name) == boot:
            return ()
        self._boots[name] = boot
        return (("", name),)

    def plan(self, key: Key, views: Views, now: datetime, entropy: Entropy) -> Sequence[Action]:
        identity, node = views[PLURAL].get(key[1]), views[NODES].get(key[1])
        if identity is None or not keys_of(identity):
            return ()  # without a key the name belongs to no machine
        reported = with_boot(identity, boot_of(node), now) if node is not None else None

        def is_accepted(use: Obj) -> bool:
            # Under HOLD an expired certificate counts on: by the way back it could have another one without a person.
            if self.policy != HOLD and has_expired(identity, use, now):
                return False
            return not self.reads_denylist or rejection(_certificate(identity, use), views, now) is None

        judged = with_condition(reported or identity, now, is_accepted, ends_both=self.policy == END)
        changed = judged or reported
        waits = (Requeue(now + LOOK),) if is_suspect(changed or identity) else ()
        ends = self._ends(changed or identity, views, now)
        if changed is None:
            return (*ends, *waits)
        told = (self._event(identity, condition_of(changed), now),) if judged is not None else ()
        announcement = f"{key[1]}: {condition_of(changed)['message']}" if judged is not None else ""
        # The revocation comes last, because it ends the finding: after a crash the condition calls for it again.
        return (*told, Update(PLURAL, changed, "status", announcement=announcement), *ends, *waits)

    def _ends(self, identity: Obj, views: Views, now: datetime) -> Sequence[Action]:
        """Return the revocation of both machines, once for a finding that says so; a finding under another policy does not."""
        condition = condition_of(identity)
        if self.policy != END or not is_duplicate(identity) or ENDS_BOTH not in condition["message"]:
            return ()
        present = views[REVOCATIONS].get(certificaterevocation.node_entry(identity["metadata"]["name"]))
        if present is not None:
            made = max(spec_of(present).get("issuedBefore", ""), present["metadata"].get("creationTimestamp", ""))
            if made >= condition["lastTransitionTime"]:
                return ()
        return (_revocation(identity["metadata"]["name"], present, now),)

    def _event(self, identity: Obj, condition: Obj, now: datetime) -> Action:
        """Return the action that tells a condition."""
        name = identity["metadata"]["name"]
        is_found = condition["status"] == "True"
        event = new_event(
            {
                "apiVersion": "v1",
                "kind": "Node",
                "name": name,
                "uid": name,
            },  # as kubelet does: kubectl describe node shows it
            DUPLICATE if is_found else condition["reason"],
            condition["message"],
            now,
            metadata={"name": f"{name}.{int(now.timestamp()):x}"},
            is_warning=is_found,
        )
        return Create("events", event)


def _certificate(identity: Obj, use: Obj) -> RecordedCertificate:
    """Return the facts of the certificate of a use, by which the server judges it."""
    name, public_key = identity["metadata"]["name"], use["publicKey"]
    key: Obj = next((one for one in keys_of(identity) if one["publicKey"] == public_key), {})
    serial_number, issuer = key.get("serialNumber", ""), key.get("issuer", "")
    issued = parse_rfc3339(use["firstUsed"])  # before that
    path = (PathCertificate(serial_number, issuer, (public_key,)),)
    fingerprint = use["certificate"].removeprefix("sha256:")
    return RecordedCertificate(
        f"{NODE_PREFIX}{name}", name, fingerprint, int(serial_number or "0", 16), public_key, issuer, issued, path
    )


def _revocation(name: str, present: Obj | None, now: datetime) -> Action:
    """Return the action that revokes every certificate that the node has. `present`: an earlier entry of its name."""
    entry = certificaterevocation.node_entry(name)
    spec = {"nodeName": name, "reason": "keyCompromise", "message": REVOKED_TEXT}
    if present is None:
        obj = {"apiVersion": API_VERSION, "kind": "CertificateRevocation", "metadata": {"name": entry}, "spec": spec}
        return Create(REVOCATIONS, obj)
    # The next whole second, as for a new entry: times in certificates have no fractions.
    until = rfc3339(now + timedelta(seconds=1))
    return Update(REVOCATIONS, {**present, "spec": {**spec_of(present), **spec, "issuedBefore": until}})


@dataclass(frozen=True, slots=True)
class UniqueMachine:
    """Issuance check `uniqueness`: holds the requests of two machines with one identity."""

    policy: str
    name: str = "uniqueness"
    watches: tuple[str, ...] = (PLURAL,)

    def check(self, pending: PendingIssue, views: Views) -> CheckResult | None:
        node = pending.machine or pending.node_name
        if self.policy != HOLD or not pending.automatic or not node:
            return None
        identity = views[PLURAL].get(node)
        # A join by a token takes the name over only where an administrator gave the token for it: the next check decides.
        is_join = pending.username.startswith((BOOTSTRAP_USER_PREFIX, JOIN_RULE_PREFIX)) and not pending.password
        if identity is None or is_join or not is_duplicate(identity):
            return None
        return Hold(DUPLICATE, _message(identity, pending))


def _message(identity: Obj, pending: PendingIssue) -> str:
    name, certificate = identity["metadata"]["name"], presented_certificate(pending.csr)
    use = next((one for one in uses_of(identity) if one["certificate"] == certificate), None)
    which = (
        f"this one has the key {use['publicKey']}, first used at {use['firstUsed']}"
        + (f" from {use['sourceAddress']}" if use.get("sourceAddress") else "")
        if use is not None
        else "which one made this request is not known"
    )
    request = pending.csr["metadata"]["name"]
    return (
        f"two machines use the identity {name}; {which}. An administrator keeps one of them (mooring node show {name}, mooring "
        f"node split {name} --keep KEY), or approves this request (mooring csr approve {request}). If this machine is a copy, let "
        "it join as a new machine: mooring join"
    )
