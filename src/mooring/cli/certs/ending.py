"""Certificates that end some day: those of a cluster, through its API, or those in the data directory of a server.

Rules kept here:
* Through the API: what the servers report of themselves (`mooring.cli.serverreport`), and the inventory of certificates of machines
  and users.
* Ends that matter are those of certificates that the server accepts, or that have ended and were not renewed. Of several
  certificates of the same machine or user the one that ends last counts.
* What a user may not read is named, so that a check is never taken for a whole one.
* The data directory is read without a server. Certificates of a rollover that is done, which vouch for nothing new, are left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509

from mooring.cli import serverreport
from mooring.cli.certs import inventory
from mooring.cli.certs.inventory import CA, CLIENT, EXPIRED, SERVER, SERVING, USER, VALID, Inventory, KnownCertificate
from mooring.client.cluster import ClusterClient
from mooring.client.files import read_limited
from mooring.clock import human_duration, parse_rfc3339, rfc3339
from mooring.errors import ConfigError
from mooring.pki.errors import PkiError
from mooring.pki.pem import certificates
from mooring.trust.kubeconfig.model import Selected
from mooring.trust.kubeconfig.text import parse_kubeconfig

KUBECONFIGS = ("admin.conf", "super-admin.conf")
_FILES = {"ca.crt": "CA of the cluster", "apiserver.crt": "serving certificate"}
_LEFT_OUT = frozenset({"retired-ca.crt", "distrusted-ca.crt", "cross-signed.crt"})
_DESCRIPTIONS = {CLIENT: "client certificate", SERVING: "serving certificate", USER: "client certificate"}


@dataclass(frozen=True, slots=True)
class Ends:
    """Certificates with their ends, and what this user could not read."""

    certificates: Sequence[KnownCertificate]
    unreadable: Sequence[str] = ()

    def within(self, span: timedelta, now: datetime) -> list[KnownCertificate]:
        """Return the certificates that end within `span` or have ended, the first end first."""
        counting = (
            one
            for one in self.certificates
            if one.state in (VALID, EXPIRED) and not one.is_renewed and one.expires and _left(one, now) <= span
        )
        return sorted(counting, key=lambda one: (parse_rfc3339(one.expires), one.name, one.kind))


def _left(one: KnownCertificate, now: datetime) -> timedelta:
    return parse_rfc3339(one.expires) - now


def what(one: KnownCertificate) -> str:
    """Return what ends."""
    if one.description:
        return one.description
    is_shared = one.kind == CLIENT and one.node and one.user and not one.user.endswith(f":{one.node}")
    return f"client certificate of {one.user}" if is_shared else _DESCRIPTIONS[one.kind]


def where(one: KnownCertificate) -> str:
    """Return the machine, user or file that has the certificate."""
    return f"node {one.node}" if one.node else one.place or f"user {one.user}"


def left(one: KnownCertificate, now: datetime) -> str:
    """Return the time that is left, as `12d`, or `ended 3h ago`."""
    span = _left(one, now)
    return human_duration(span) if span > timedelta(0) else f"ended {human_duration(-span)} ago"


def document(one: KnownCertificate, now: datetime) -> dict[str, Any]:
    """Return one certificate for JSON and YAML."""
    return {
        "what": what(one),
        "where": where(one),
        "secondsLeft": int(_left(one, now).total_seconds()),
    } | one.document()


async def fetch(client: ClusterClient, selected: Selected, now: datetime) -> tuple[Ends, Inventory]:
    """Read what a cluster knows, and return the inventory, too. Raises PeerError for a server without these kinds."""
    known, reports = await asyncio.gather(inventory.fetch(client), serverreport.fetch(selected, client.clock))
    found = [*known.certificates(now), *known.recorded(now)]
    unreadable = []
    for one in reports:
        if one.report is not None:
            found += of_server(one.report, now)
        else:
            unreadable.append(f"the certificates of {one.address}: {one.problem}")
    if not known.is_lineage_read:
        unreadable.append(
            "certificates of users, and serving certificates of machines: LineageRecords are not readable"
        )
    if known.nodes is None:
        unreadable.append("whether machines are members: Nodes are not readable for this user")
    return Ends(found, unreadable), known


def of_server(reported: dict[str, Any], now: datetime) -> Iterator[KnownCertificate]:
    """Yield the certificates that a server reports."""
    name = reported.get("server", "")
    for one in reported.get("certificates") or ():
        ends, file = one["notAfter"], one.get("file", "")
        yield KnownCertificate(
            "",
            one.get("serialNumber", ""),
            "",
            ends,
            VALID if parse_rfc3339(ends) > now else EXPIRED,
            kind=CA if one.get("isCA") else SERVER,
            description=one.get("description", "").removeprefix("the "),
            place=f"{name}:{file}" if file else f"{name}/{one.get('name', '')}",
        )


def of_data_dir(data_dir: Path, now: datetime) -> Ends:
    """Read the files of a server. Raises ConfigError for a directory without them, and for files that cannot be read."""
    try:
        pki = sorted(path for path in (data_dir / "pki").iterdir() if path.suffix == ".crt")
    except OSError as error:
        raise ConfigError(
            f"{data_dir / 'pki'} cannot be read: {error.strerror}; give the data directory of a server with --data-dir"
        ) from None
    found: list[KnownCertificate] = []
    for path in pki:
        if path.name not in _LEFT_OUT:
            found += _of_file(_FILES.get(path.name, "certificate"), path, _read(path), now)
    for name in KUBECONFIGS:
        if (path := data_dir / name).exists():
            users = parse_kubeconfig(read_limited(path)).users
            leaves = [_parsed(path, user.certificate_pem)[0] for user in users if user.certificate_pem]
            found += _of_file(f"client certificate of {name}", path, leaves, now)
    if not found:
        raise ConfigError(f"{data_dir} has no certificates: give the data directory of a server with --data-dir")
    return Ends(found)


def _read(path: Path) -> Sequence[x509.Certificate]:
    return _parsed(path, read_limited(path))


def _parsed(path: Path, data: bytes) -> Sequence[x509.Certificate]:
    try:
        return certificates(data)
    except PkiError as error:
        raise ConfigError(f"{path}: {error}") from None


def _of_file(
    description: str, path: Path, found: Iterable[x509.Certificate], now: datetime
) -> Iterator[KnownCertificate]:
    for one in found:
        end = one.not_valid_after_utc
        yield KnownCertificate(
            "",
            f"{one.serial_number:x}",
            "",
            rfc3339(end),
            VALID if end > now else EXPIRED,
            kind=CA if path.name == "ca.crt" else SERVER,
            description=description,
            place=str(path),
        )
