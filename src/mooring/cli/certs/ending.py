"""`mooring certs check`: certificates that end soon, of a cluster or in a data directory, with an exit code for cron."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import click

from mooring.cli import printing, serverreport
from mooring.cli.certs import inventory
from mooring.cli.certs.inventory import (
    CA,
    CLIENT,
    EXPIRED,
    POD,
    SERVER,
    SERVING,
    USER,
    VALID,
    Inventory,
    KnownCertificate,
)
from mooring.cli.cluster import ChosenCluster, one_cluster_options
from mooring.cli.options.flags import DAYS, LISTED, output_option
from mooring.cli.printing import echo
from mooring.cli.serverreport import ServerReport
from mooring.client.cluster import ClusterClient
from mooring.client.files import read_limited
from mooring.clock import human_duration, parse_rfc3339, rfc3339
from mooring.duration import format_duration
from mooring.errors import ConfigError, ForbiddenError
from mooring.pki.errors import PkiError
from mooring.pki.x509.bundles import certificates, certificates_among
from mooring.pki.x509.certificate import Certificate
from mooring.trust.kubeconfig import KubeconfigError, Selected, resolve_paths
from mooring.trust.kubeconfigtext import parse_kubeconfig

# Certificates that end some day: those of a cluster, through its API, or those in the data directory of a server.
#
# Rules kept here:
# * Through the API: what the servers report of themselves (`mooring.cli.serverreport`), and the inventory of certificates of
#   machines and users.
# * Ends that matter are those of certificates that the server accepts, or that have ended and were not renewed. Of several
#   certificates of the same machine or user the one that ends last counts.
# * A kubelet renews the certificates of Pods, and they are not among those that matter.
# * What a user may not read is named, so that a check is never taken for a whole one.
# * The data directory is read without a server: every `*.crt` below `pki/`, behind links to directories, too, and every kubeconfig
#   with the files that it names. So `/etc/kubernetes` of kubeadm can be read, too. Certificates of a rollover that is done, which
#   vouch for nothing new, are left out. A file that cannot be read is named, and hides no other.

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
            if one.state in (VALID, EXPIRED)
            and not one.is_renewed
            and one.kind != POD
            and one.expires
            and _left(one, now) <= span
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


def end_document(one: KnownCertificate, now: datetime) -> dict[str, Any]:
    """Return one certificate for JSON and YAML."""
    return {
        "what": what(one),
        "where": where(one),
        "secondsLeft": int(_left(one, now).total_seconds()),
    } | one.document()


async def fetch(client: ClusterClient, selected: Selected, now: datetime) -> tuple[Ends, Inventory]:
    """Read what a cluster knows, and return the inventory, too. Raises PeerError for a server without these kinds.

    Raises ForbiddenError for a user who may read nothing of it.
    """
    fetched, reports = await asyncio.gather(_inventory(client), serverreport.fetch(selected, client.clock))
    unreadable: list[str] = []
    if isinstance(fetched, ForbiddenError):
        if all(one.report is None for one in reports):
            raise fetched
        unreadable.append(f"certificates of machines: {fetched}")
        fetched = Inventory(identities=(), entries=(), is_issuance_log_read=False)
    known = fetched
    found = known_certificates(known, reports, now)
    for one in reports:
        if one.report is not None:
            unreadable += [
                f"{file['description']} of {one.report.get('server', one.address)}: {file['problem']}"
                for file in one.report.get("unreadable") or ()
            ]
        else:
            unreadable.append(f"the certificates of {one.address}: {one.problem}")
    if not known.is_issuance_log_read:
        unreadable.append(
            "certificates of users, and serving certificates of machines: LineageRecords are not readable"
        )
    if known.nodes is None:
        unreadable.append("whether machines are members: Nodes are not readable for this user")
    return Ends(found, unreadable), known


async def _inventory(client: ClusterClient) -> Inventory | ForbiddenError:
    try:
        return await inventory.fetch(client)
    except ForbiddenError as error:
        return error


def known_certificates(known: Inventory, reports: Iterable[ServerReport], now: datetime) -> list[KnownCertificate]:
    """Return the certificates that the cluster knows, and those that servers report."""
    recorded = [*known.certificates(now), *known.recorded(now)]
    served = [one for report in reports if report.report is not None for one in of_server(report.report, now)]
    shown = {one.serial_number for one in served if one.kind != CA}
    revoked = {one.serial_number: one for one in recorded if not one.name and one.serial_number in shown}
    return [
        *(one for one in recorded if revoked.get(one.serial_number) is not one),
        *(
            replace(one, state=entry.state, revoked_by=entry.revoked_by, reason=entry.reason)
            if (entry := revoked.get(one.serial_number))
            else one
            for one in served
        ),
    ]


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
    """Read the files of a server. Raises ConfigError for a directory without a certificate that can be read."""
    found: list[KnownCertificate] = []
    unreadable: list[str] = []
    of_kubeconfig = partial(_of_kubeconfig, directory=str(data_dir))
    files: list[tuple[Path, Callable[[bytes], Sequence[Certificate]]]] = [
        *((path, certificates) for path in _files(data_dir / "pki", ".crt", unreadable) if path.name not in _LEFT_OUT),
        *((path, of_kubeconfig) for path in _files(data_dir, ".conf", unreadable, is_whole=False)),
    ]
    for path, read in files:
        try:
            found += _of_file(path, read, now)
        except ConfigError as error:
            unreadable.append(str(error))
    if not found:
        nothing = f"{data_dir} has no certificates: give the data directory of a server with --data-dir"
        raise ConfigError(next(iter(unreadable), nothing))
    return Ends(found, unreadable)


def _files(directory: Path, suffix: str, unreadable: list[str], *, is_whole: bool = True) -> list[Path]:
    """Return the files in a directory; with `is_whole` those below it, too. What cannot be listed is added to `unreadable`."""

    def fail(error: OSError) -> None:
        reason = f"cannot be read: {error.strerror}; give the data directory of a server with --data-dir"
        unreadable.append(f"{error.filename} {reason}")

    found: list[Path] = []
    seen: set[Path] = set()
    for root, directories, names in os.walk(directory, onerror=fail, followlinks=True):
        found += (Path(root) / name for name in names if name.endswith(suffix))
        seen.add(Path(root).resolve())
        directories[:] = [name for name in directories if is_whole and (Path(root) / name).resolve() not in seen]
    return sorted(found)


def _of_kubeconfig(data: bytes, directory: str) -> Sequence[Certificate]:
    """Return the client certificates of a kubeconfig in `directory`, also those in files that it names."""
    users = resolve_paths(parse_kubeconfig(data), directory).users
    pems = [
        user.certificate_pem or read_limited(Path(user.certificate_file), handed_over=False)
        for user in users
        if user.certificate_pem or user.certificate_file
    ]
    return [certificates_among(pem)[0] for pem in pems]


def _of_file(path: Path, read: Callable[[bytes], Sequence[Certificate]], now: datetime) -> Iterator[KnownCertificate]:
    try:
        data = read_limited(path)
        # As a full disk leaves a file: it names no certificate.
        if path.suffix == ".conf" and not data.strip():
            raise ConfigError(f"{path} is empty")
        found = read(data)
    except (PkiError, KubeconfigError) as error:
        raise ConfigError(f"{path}: {error}") from None
    for one in found:
        end = one.not_valid_after_utc
        yield KnownCertificate(
            "",
            f"{one.serial_number:x}",
            "",
            rfc3339(end),
            VALID if end > now else EXPIRED,
            kind=CA if _is_ca(one) else SERVER,
            description=_description(path, one),
            place=str(path),
        )


def _description(path: Path, certificate: Certificate) -> str:
    if path.suffix == ".conf":
        return f"client certificate of {path.name}"
    return _FILES.get(path.name) or ("CA" if _is_ca(certificate) else "certificate")


def _is_ca(certificate: Certificate) -> bool:
    constraints = certificate.extensions.basic_constraints
    return constraints is not None and constraints.ca


# `mooring certs check`: list what ends soon, with an exit code for cron.
#
# Rules kept here:
# * Exit code 0: nothing ends within the time. 1: something ends or has ended, or not everything could be read. 2: wrong command
#   line.
# * With `--data-dir` the files of a server on this machine are read, and no server is needed.

HEADERS = ("WHAT", "WHERE", "ENDS", "LEFT")


@click.command("check")
@click.option(
    "--within",
    type=DAYS,
    default="30d",
    show_default=True,
    help="Time within which an end is reported, such as 30d or 36h.",
)
@click.option(
    "--data-dir",
    default=None,
    metavar="DIR",
    help="Read the files of the server on this machine, in this data directory, and ask no server.",
)
@output_option(*LISTED)
@one_cluster_options
def check(within: timedelta, data_dir: str | None, output: str, chosen: ChosenCluster) -> int:
    """List what ends soon or has ended: certificates of servers, machines and users, and CAs. The exit code is then 1.

    Through the API: certificates and CAs of the servers in the kubeconfig, client and serving certificates of machines, and
    those of users. With --data-dir: the files of a server. A certificate that was renewed, revoked, or whose Node was deleted, is
    left out.
    """
    now = chosen.clock.now()
    if data_dir == "":
        raise click.UsageError("--data-dir is empty: name the data directory of a server")
    if data_dir is not None:
        if chosen.kubeconfig or chosen.context_name:
            raise click.UsageError("--data-dir cannot be mixed with --kubeconfig or --context: it asks no server")
        ends = of_data_dir(Path(data_dir), now)
    else:
        ends, _ = chosen.run_with_retries(lambda client: fetch(client, chosen.selected, now))
    return _report(ends, within, output, now)


def _report(ends: Ends, within: timedelta, form: str, now: datetime) -> int:
    found = ends.within(within, now)
    if form in ("json", "yaml"):
        items = [end_document(one, now) for one in found]
        document = {
            "kind": "ExpiryReport",
            "within": format_duration(within),
            "checked": len(ends.certificates),
            "items": items,
            "unreadable": list(ends.unreadable),
        }
        printing.print_document(document, form)
    elif form == "name":
        for one in found:
            echo(one.serial_number)
    elif found:
        printing.print_table(HEADERS, [cells(one, now) for one in found])
    elif not ends.unreadable:
        echo(f"Nothing ends within {human_duration(within)}: {len(ends.certificates)} certificates were checked.")
    for missing in ends.unreadable:
        echo(f"warning: not checked: {missing}", err=True)
    return 1 if found or ends.unreadable else 0


def cells(one: KnownCertificate, now: datetime) -> tuple[str, ...]:
    """Return one row of the table."""
    return what(one), where(one), _day(one.expires), left(one, now)


def _day(text: str) -> str:
    return f"{parse_rfc3339(text):%Y-%m-%d}"
