"""Check that the object which a credential is bound to still exists (docs/protocol/service-account-tokens.md#bound-tokens).

Rules kept here: the object exists, has the uid that the credential names, and was not deleted longer than a grace period ago: a
Pod that shuts down may still call for a minute. A Node that came back with a restored store is as good as gone. Where an object
cannot be read, the credential is undecided. The detail of a rejection names the object.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from mooring.api.mooring import ends
from mooring.api.view import Views
from mooring.authn.reasons import UNREADABLE
from mooring.authn.serviceaccount.reasons import DELETED, GONE, REPLACED, UNKNOWN_KIND
from mooring.authn.verdict import Rejected
from mooring.clock import gap, parse_rfc3339

NODES = "nodes"
GRACE = timedelta(seconds=60)
NO_GRACE = timedelta.min


@dataclass(frozen=True, slots=True)
class Live:
    """One object that must be there, with this uid."""

    plural: str
    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.plural} {self.namespace}/{self.name}" if self.namespace else f"{self.plural} {self.name}"


def problem(views: Views, live: Live, now: datetime, grace: timedelta = GRACE) -> Rejected | None:
    """Return the rejection of the credential, or None when the object exists."""
    view = views.get(live.plural)
    if view is None:
        return Rejected(UNKNOWN_KIND, f"{live}: this server keeps no {live.plural}")
    obj = view.get(live.name, live.namespace)
    if obj is None and (trouble := view.problem(live.name, live.namespace)):
        return Rejected(UNREADABLE, f"{live} cannot be read: {trouble}", is_undecided=True)
    if obj is None:
        return Rejected(GONE, f"{live} is not there any more")
    uid = obj["metadata"].get("uid")
    if uid != live.uid:
        return Rejected(REPLACED, f"{live} is another one now: its uid is {uid}, the token is for {live.uid or 'none'}")
    if live.plural == NODES and (rejected := _ended_node(views, live)):
        return rejected
    deleted = obj["metadata"].get("deletionTimestamp")
    if not deleted:
        return None
    late = now - parse_rfc3339(deleted)
    return Rejected(DELETED, f"{live} was deleted {gap(max(late, timedelta(0)))} ago") if late > grace else None


def _ended_node(views: Views, live: Live) -> Rejected | None:
    """Return the rejection for a Node that was deleted before the store was restored, or where that cannot be known."""
    remembered = ends.ended(views, ends.End.NODE, live.name)
    if remembered is not None and (live.uid in ends.uids_of(remembered) or not remembered.get("uid")):
        return Rejected(GONE, f"{live} was deleted before the store was restored")
    problem = ends.unknown(views, ends.End.NODE)
    return Rejected(UNREADABLE, problem, is_undecided=True) if problem else None
