"""Lineage records of a cluster, for the commands that read them."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import timedelta

from mooring.api.mooring.lineagerecord import PLURAL
from mooring.api.mooring.nodeidentity import PLURAL as NODE_IDENTITIES
from mooring.api.mooring.nodeidentity import keys_of
from mooring.apimachinery.schema import Obj
from mooring.cli import cluster
from mooring.client.cluster import ClusterClient
from mooring.clock import Clock
from mooring.errors import ConfigError, NotFoundError
from mooring.pki.errors import PkiError
from mooring.pki.x509.bundles import certificates
from mooring.pki.x509.signers import SIGNERS
from mooring.trust.lineage import VerifiedLineage

REQUESTS = "certificatesigningrequests"
_SIGNER = "csrsigner"
"""The controller that writes records; mooring controllers runs it by name only."""


async def fetch_records(client: ClusterClient, clock: Clock, limit: timedelta) -> Sequence[Obj]:
    """Return all records. Raises PeerError for a cluster without the kind."""
    try:
        return await _listed(client, PLURAL, clock, limit)
    except NotFoundError:
        raise await cluster.not_served(client, PLURAL, controller=_SIGNER) from None


async def fetch_requests(client: ClusterClient, clock: Clock, limit: timedelta) -> Sequence[Obj]:
    """Return all requests. Fetch them before the records: a certificate is recorded first, and published in its request then."""
    return await _listed(client, REQUESTS, clock, limit)


def certificates_in(requests: Sequence[Obj], since: str) -> list[tuple[str, str]]:
    """Return (serial number, description) of the certificates that must be recorded: those in requests that were created at
    `since` or later."""
    found: list[tuple[str, str]] = []
    for csr in requests:
        issued, spec = (csr.get("status") or {}).get("certificate"), csr.get("spec") or {}
        if not issued or spec.get("signerName") not in SIGNERS:
            continue
        if csr["metadata"].get("creationTimestamp", "") < since:
            continue  # from before the lineage began
        try:
            leaf = certificates(base64.b64decode(issued))[0]
        except (PkiError, ValueError):
            continue  # no certificate that a client could use
        found.append((f"{leaf.serial_number:x}", f"the certificate in the request {csr['metadata']['name']}"))
    return found


async def fetch_claims(client: ClusterClient, clock: Clock, limit: timedelta) -> list[tuple[str, str]]:
    """Return (serial number, description) of the certificates in node identities. An identity is written before its certificate
    is signed, so that one may lack a record because it was never issued."""
    try:
        return claims_in(await _listed(client, NODE_IDENTITIES, clock, limit))
    except NotFoundError:
        return []  # a cluster without node identities


def claims_in(identities: Sequence[Obj]) -> list[tuple[str, str]]:
    """Return (serial number, description) of the certificates in node identities."""
    return [
        (key["serialNumber"], f"a certificate of the node {identity['metadata']['name']}")
        for identity in identities
        for key in keys_of(identity)
        if key.get("serialNumber")
    ]


async def _listed(client: ClusterClient, plural: str, clock: Clock, limit: timedelta) -> Sequence[Obj]:
    async def ask() -> Sequence[Obj]:
        return (await client.list(plural)).items

    return await cluster.retry(ask, clock, limit)


def require_whole(verified: VerifiedLineage) -> None:
    """Raise ConfigError for a chain with a fault."""
    for fault in verified.faults:
        raise ConfigError(f"record {fault.record}: {fault.message}; see mooring audit verify")
