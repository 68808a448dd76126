"""Record of the controllers' Lease and of what controllers did, and the checks that no two processes led and none forgot.

Rules kept here: the Lease is followed through the API, every version once. A holder may be succeeded after the duration of the
Lease since its last renewal, after its release, or when its process was killed. All processes of a test read one clock. A request
has one certificate for good: two controllers that both act would issue two. Every certificate is in the issuance log, and the chain
of the issuance log is whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from mooring.agent import certificaterequest
from mooring.apimachinery.schema import Obj
from mooring.cli.issuance import certificates_in, fetch_records, fetch_requests
from mooring.client.cluster import ClusterClient, ListResult, Target
from mooring.client.listwatch import follow
from mooring.clock import SystemClock, parse_rfc3339
from mooring.controlplane.storewatermark.watermarkfile import read_watermark
from mooring.reconcile.leaderelection import NAME, NAMESPACE
from mooring.trust.issuancelog import unrecorded, verify

LEASES = "leases"


class Impatient(SystemClock):
    """Clock of a client that resumes its watch soon after a failure."""

    async def sleep(self, seconds: float) -> None:
        await super().sleep(min(seconds, 0.2))


@dataclass
class Leadership:
    """Versions of the Lease by revision, and certificates by request."""

    versions: dict[int, Obj] = field(default_factory=dict)
    certificates: dict[str, set[bytes]] = field(default_factory=dict)
    recorded: int = 0
    """Entries of the issuance log when it was verified."""

    async def follow(self, open_client: Callable[[], ClusterClient]) -> None:
        """Record until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow(open_client, LEASES, NAMESPACE, self._add_lease))
            group.create_task(self._follow(open_client, certificaterequest.PLURAL, "", self._add_request))

    async def _follow(
        self, open_client: Callable[[], ClusterClient], target: Target, namespace: str, add: Callable[[Obj], None]
    ) -> None:
        async with open_client() as client:
            async for change in follow(client, target, namespace):
                for obj in change.items if isinstance(change, ListResult) else [change.object]:
                    add(obj)

    def _add_lease(self, lease: Obj) -> None:
        if lease["metadata"]["name"] == NAME:
            self.versions[int(lease["metadata"]["resourceVersion"])] = lease["spec"]

    def _add_request(self, request: Obj) -> None:
        if issued := certificaterequest.certificate_of(request):
            self.certificates.setdefault(request["metadata"]["name"], set()).add(issued)

    @property
    def holders(self) -> list[str]:
        """Holders one after another."""
        found: list[str] = []
        for _, spec in sorted(self.versions.items()):
            holder = spec.get("holderIdentity", "")
            if holder and found[-1:] != [holder]:
                found.append(holder)
        return found

    async def issuance_log_findings(self, admin: ClusterClient, servers: Sequence[Path]) -> list[str]:
        """Return what `mooring issuance verify` would find, with the ends of the chain in the directories of the servers."""
        clock, limit = SystemClock(), timedelta(seconds=60)
        heads = [head for directory in servers for head in read_watermark(directory).issuance_log]
        requests = await fetch_requests(admin, clock, limit)
        verified = verify(await fetch_records(admin, clock, limit), heads)
        self.recorded = len(verified.entries)
        missing = unrecorded(verified.entries, certificates_in(requests, "", ""))
        return [fault.message for fault in (*verified.faults, *missing)]

    def findings(self, killed: Collection[str]) -> list[str]:
        """Return the changes of the holder that came too early, and requests with two certificates."""
        found = [
            f"request {name} was issued {len(issued)} certificates"
            for name, issued in self.certificates.items()
            if len(issued) > 1
        ]
        before: Obj = {}
        for revision, spec in sorted(self.versions.items()):
            old, new = before.get("holderIdentity", ""), spec.get("holderIdentity", "")
            if old not in ("", new) and new and old not in killed:
                lasts = timedelta(seconds=before["leaseDurationSeconds"])
                waited = parse_rfc3339(spec["renewTime"]) - parse_rfc3339(before["renewTime"])
                if waited < lasts:
                    found.append(f"{new} took the Lease of {old} after {waited}, at revision {revision}")
            before = spec
        return found
