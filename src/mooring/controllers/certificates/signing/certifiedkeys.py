"""Keys that the lineage has certificates of: an index for rules that want a fresh key.

Rules kept here:
* The lineage has an entry before a certificate is published, and keeps it. So a key is known for the life of its certificate, also
  when the CertificateSigningRequest was deleted long ago.
* A certificate that has ended does not count, nor does the entry of the request itself: its signature may be repeated.
* Records are never changed, so that each is read once.
"""

from __future__ import annotations

from datetime import datetime

from mooring.api.mooring.lineagerecord import EVENT_ISSUED, entries_of
from mooring.api.view import View, ViewFollower
from mooring.apimachinery.schema import Obj
from mooring.clock import parse_rfc3339


class CertifiedKeys:
    """Index of one view of the lineage, by public key."""

    def __init__(self) -> None:
        self._follower = ViewFollower()
        self._ends: dict[str, dict[str, datetime]] = {}
        """By key, and by uid of the request: the end of its certificate."""

    def has(self, view: View, public_key: str, now: datetime, *, other_than: str) -> bool:
        """Return true when another request than that with this uid has a certificate of the key that is valid at `now`."""
        changes = self._follower.changes(view)
        if changes is not None:
            start_over, records = changes
            if start_over:
                self._ends.clear()
            for _, record in records:
                for entry in () if record is None else entries_of(record):
                    self._add(entry)
        return any(uid != other_than and end >= now for uid, end in self._ends.get(public_key, {}).items())

    def _add(self, entry: Obj) -> None:
        if entry.get("event") != EVENT_ISSUED or "publicKey" not in entry:
            return
        try:
            end = parse_rfc3339(entry.get("notAfter", ""))
        except ValueError:
            return
        self._ends.setdefault(entry["publicKey"], {})[entry.get("requestUID", "")] = end
