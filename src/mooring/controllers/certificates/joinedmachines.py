"""Machines that have joined, by the address and the token of their join, for requests that name no machine.

Rules kept here (docs/protocol/k3s.md#certificates):
* kube-proxy and k3s's controller have one user for all machines, and their requests name none. Where only certain machines may
  join, such a request is one of theirs when it comes from the address of a machine that joined, with the same token if it was made
  with one.
* A node that requests with its own certificate has joined.
* Agents request the client certificate of the kubelet first, so that its address is recorded before.
"""

from __future__ import annotations

from mooring.api.certificates.sourceaddress import source_address_of
from mooring.api.meta.printcolumns import spec_of
from mooring.api.mooring.nodeidentity import PLURAL
from mooring.api.view import ViewFollower, Views
from mooring.apimachinery.schema import Obj
from mooring.controllers.certificates.issuance import Issuance, Objection
from mooring.identity import NODE_PREFIX, bootstrap_token_id
from mooring.pki.x509.supervisorsigners import NODE_SIGNERS, SUPERVISOR_SIGNERS

NOT_JOINED = "MachineNotJoined"


def names_no_machine(issuance: Issuance) -> bool:
    """Return true for a request of a machine for the certificate of a user that all machines share."""
    return issuance.signer_name in SUPERVISOR_SIGNERS and issuance.signer_name not in NODE_SIGNERS


class JoinedMachines:
    """Addresses from which machines joined, kept up to date from the view of NodeIdentities."""

    __slots__ = ("_follower", "_names", "_place_of")

    def __init__(self) -> None:
        self._follower = ViewFollower()
        self._place_of: dict[str, tuple[str, str]] = {}
        self._names: dict[tuple[str, str], set[str]] = {}

    def objection(self, issuance: Issuance, views: Views) -> Objection | None:
        """Return an objection unless a machine that has joined makes the request."""
        if issuance.username.startswith(NODE_PREFIX):
            return None
        self._follow(views)
        address = source_address_of(issuance.csr)
        token = bootstrap_token_id(issuance.username)
        if address and self._names.get((address, token)):
            return None
        with_token = f" with the bootstrap token {token}" if token else ""
        return Objection(
            NOT_JOINED,
            f"no machine has joined{with_token} from {address or 'an unknown address'}; request the client certificate of the "
            "kubelet first",
        )

    def _follow(self, views: Views) -> None:
        changes = self._follower.changes(views[PLURAL])
        if changes is None:
            return
        start_over, changed = changes
        if start_over:
            self._place_of, self._names = {}, {}
        for (_, name), identity in changed:
            self._put(name, identity)

    def _put(self, name: str, identity: Obj | None) -> None:
        before = self._place_of.pop(name, None)
        if before is not None:
            names = self._names[before]
            names.discard(name)
            if not names:
                del self._names[before]
        spec = spec_of(identity) if identity is not None else {}
        if spec.get("sourceAddress") and spec.get("keys"):
            place = self._place_of[name] = spec["sourceAddress"], spec.get("token", "")
            self._names.setdefault(place, set()).add(name)
