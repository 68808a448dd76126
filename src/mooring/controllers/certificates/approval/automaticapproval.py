"""Steps that all approvers of this program share: read an undecided request, and approve it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from mooring.api.certificates.conditions import APPROVED
from mooring.api.view import Views
from mooring.apimachinery.schema import Obj
from mooring.controllers.actions import Key, Still, Update
from mooring.controllers.certificates.issuance import NEEDS_APPROVAL, Issuance
from mooring.controllers.certificates.requeststate import REQUESTS, parsed_request, with_condition, without_condition
from mooring.pki.errors import RequestError


def undecided(key: Key, views: Views, now: datetime, may_be_approved: Callable[[Obj], bool]) -> Issuance | None:
    """Return the request of a key; None when it is gone, decided, or not for this approver, and when it cannot be read.

    One that cannot be read was written by another server, since this one validates. The signer reports it after an approval.
    """
    csr = views[REQUESTS].get(key[1])
    if csr is None or not may_be_approved(csr):
        return None
    try:
        request = parsed_request(csr)
    except (RequestError, ValueError):  # ValueError: no base64
        return None
    return Issuance(csr=csr, request=request, now=now, automatic=True)


def approval(csr: Obj, reason: str, grounds: str, still: Still) -> Update:
    """Return the action that approves a request, for which a person is not needed any more. `still` judges it at its commit."""
    message = f"Approved without a person: {grounds}."
    approved = with_condition(without_condition(csr, NEEDS_APPROVAL), APPROVED, reason, message)
    return Update(REQUESTS, approved, "approval", still)
