"""Issuance check `requester`: no certificate for a requester whose credential was revoked, or who was deleted, whatever its key.

Rules kept here:
* A request may wait for days, and what authenticated it may end meanwhile. The entry of a revocation names a serial number, a key
  or a node; so a Mooring server records the client certificate of the requester with the request, and it is compared with the
  denylist and the CRLs of other CAs by the checks of the authenticator.
* A machine whose Node was deleted, and a ServiceAccount that was deleted or made again, get nothing for what they requested before.
* A name that changed hands leaves nothing to its former machine: a request from before is not one of the present owner, nor is one
  that was made with a certificate whose key has lost the name.
* The request of a node from before its revocation was made with one of its revoked certificates.
* Such a request is denied, and is not signed although a person approved it. A new request is the way out.
* What cannot be read holds the request: a person may look.
* The expiry of a credential changes nothing: a request that was good may wait for a person. So it is with the end of the Pod that a
  ServiceAccount token is bound to. The deletion of a bootstrap token holds its requests (`bootstrap-token-limits`).
* Another API server lets its clients write the record. It is read only where the server guards it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mooring.api.certificates.knownrevocations import precedes
from mooring.api.certificates.requestercertificate import requester_certificate_of
from mooring.api.meta.printcolumns import spec_of
from mooring.api.mooring.certificaterevocation import PLURAL as REVOCATIONS
from mooring.api.mooring.certificaterevocation import node_entry
from mooring.api.mooring.membership import has_companion, has_ended, may_use_name, was_made_before_change
from mooring.api.mooring.nodeidentity import PLURAL as IDENTITIES
from mooring.api.view import Views
from mooring.apimachinery.schema import Obj
from mooring.authn import revocations
from mooring.authn.x509 import ClientCrls
from mooring.controllers.certificates.issuance import Issuance, Objection
from mooring.identity import NODE_PREFIX, RECOVERING_NODE_PREFIX, SERVICE_ACCOUNT_PREFIX
from mooring.pki.x509.checkedpeer import CheckedPeer, recorded_peer

NODES, SERVICE_ACCOUNTS = "nodes", "serviceaccounts"
REQUESTER_REVOKED = "RequesterRevoked"
REQUESTER_DELETED = "RequesterDeleted"
REQUESTER_UNKNOWN = "RequesterUnknown"
_AGAIN = "let the requester ask again, with a credential that counts"


@dataclass(frozen=True, slots=True)
class RequesterCheck:
    """Objects to requests of requesters that no longer count."""

    trusts_record: bool = False
    """True when the API server itself records the certificate of each requester, as Mooring does."""
    crls: ClientCrls = field(default_factory=ClientCrls)
    """The CRLs of the CAs of clients."""
    name: str = "requester"
    watches: tuple[str, ...] = (REVOCATIONS, IDENTITIES, NODES, SERVICE_ACCOUNTS)

    def check(self, issuance: Issuance, views: Views) -> Objection | None:
        objection = _certificate_objection(issuance, views, self.crls) if self.trusts_record else None
        if objection is not None:
            return objection
        for prefix in (NODE_PREFIX, RECOVERING_NODE_PREFIX):
            name = issuance.username.removeprefix(prefix)
            if name != issuance.username:
                return _node_objection(name, issuance, views)
        if issuance.username.startswith(SERVICE_ACCOUNT_PREFIX):
            return _account_objection(issuance, views)
        return None


def _certificate_objection(issuance: Issuance, views: Views, crls: ClientCrls) -> Objection | None:
    """Return an objection to the certificate that the request was made with."""
    record = requester_certificate_of(issuance.csr)
    if not record:
        return None
    peer = recorded_peer(record)
    if peer is None:
        return Objection(REQUESTER_UNKNOWN, "the record of the requester's certificate cannot be read")
    now = issuance.now
    rejection = revocations.revoked(peer, views, now) or crls.rejection(peer, views, now)
    if rejection is not None and not rejection.is_undecided:
        return _revoked(f"by {rejection.detail}")
    if rejection is not None:
        return Objection(REQUESTER_UNKNOWN, rejection.detail)
    if not peer.node_name:
        return None
    return _membership_objection(peer.node_name, issuance, views) or _key_objection(peer, issuance, views)


def _node_objection(name: str, issuance: Issuance, views: Views) -> Objection | None:
    """Return an objection to a node as requester: revoked after it asked, or deleted."""
    entry = node_entry(name)
    if problem := views[REVOCATIONS].problem(entry):
        return Objection(REQUESTER_UNKNOWN, f"{REVOCATIONS}/{entry} cannot be read: {problem}")
    found = views[REVOCATIONS].get(entry)
    if found is not None and precedes(issuance.csr, found):
        return _revoked(f"by {REVOCATIONS}/{entry}, after it made the request")
    return _membership_objection(name, issuance, views)


def _membership_objection(name: str, issuance: Issuance, views: Views) -> Objection | None:
    for plural in (IDENTITIES, NODES):
        if problem := views[plural].problem(name):
            return Objection(REQUESTER_UNKNOWN, f"{plural}/{name} cannot be read: {problem}")
    identity = views[IDENTITIES].get(name)
    if has_ended(identity, views[NODES].get(name)):
        return _deleted(f'the Node "{name}" of the requester was deleted')
    if identity is None or not was_made_before_change(issuance.csr, identity):
        return None
    return None if _is_same_machine(issuance, identity) else _changed_hands(name)


def _key_objection(peer: CheckedPeer, issuance: Issuance, views: Views) -> Objection | None:
    """Return an objection to a certificate whose key lost the name in the second in which the request was made.

    Times of objects have no fraction: a request of that second may be from before or after the change.
    """
    identity = views[IDENTITIES].get(peer.node_name)
    changed_at = spec_of(identity).get("changedAt", "") if identity is not None else ""
    if identity is None or issuance.csr["metadata"].get("creationTimestamp") != changed_at:
        return None
    if _is_same_machine(issuance, identity):
        return None
    if peer.common_name.startswith(NODE_PREFIX):
        is_known = may_use_name(identity, peer.public_key, f"sha256:{peer.fingerprint}")
    else:
        is_known = has_companion(identity, peer.public_key)
    return None if is_known else _changed_hands(peer.node_name)


def _is_same_machine(issuance: Issuance, identity: Obj) -> bool:
    """Return True when the machine keeps its name through a change of its keys."""
    spec = spec_of(identity)
    is_owner = bool(issuance.password) and issuance.password == spec.get("nodePasswordUID")
    return bool(spec.get("reregisters")) or is_owner


def _account_objection(issuance: Issuance, views: Views) -> Objection | None:
    """Return an objection to a ServiceAccount that is gone, or is another one now."""
    namespace, _, name = issuance.username.removeprefix(SERVICE_ACCOUNT_PREFIX).partition(":")
    view = views[SERVICE_ACCOUNTS]
    if problem := view.problem(name, namespace):
        return Objection(REQUESTER_UNKNOWN, f"{SERVICE_ACCOUNTS}/{name} cannot be read: {problem}")
    account = view.get(name, namespace)
    uid = issuance.csr["spec"].get("uid", "")
    if account is None or account["metadata"].get("deletionTimestamp"):
        return _deleted(f"the ServiceAccount {namespace}/{name} of the requester was deleted")
    if uid and account["metadata"].get("uid") != uid:
        return _deleted(f"the ServiceAccount {namespace}/{name} of the requester was deleted and made again")
    return None


def _changed_hands(name: str) -> Objection:
    return _deleted(f'the name "{name}" of the requester has changed hands')


def _revoked(how: str) -> Objection:
    return Objection(REQUESTER_REVOKED, f"the requester's certificate was revoked {how}: {_AGAIN}", denies=True)


def _deleted(what: str) -> Objection:
    return Objection(REQUESTER_DELETED, f"{what}: {_AGAIN}", denies=True)
