"""`mooring certs list` and `mooring certs show`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import click

from mooring.api.mooring.authorizedmachine import PLURAL as MACHINES
from mooring.api.mooring.certificaterevocation import key_entry, node_entry, serial_entry
from mooring.api.mooring.nodeidentity import PLURAL as IDENTITIES
from mooring.api.objectmeta import spec_of
from mooring.api.view import FixedView
from mooring.apimachinery.schema import Obj
from mooring.authn import revocations
from mooring.cli import printing, serverreport
from mooring.cli.auth import request_explanation
from mooring.cli.certs import ending, inventory
from mooring.cli.certs.ending import Ends, known_certificates
from mooring.cli.certs.inventory import (
    ENDED,
    EXPIRED,
    KINDS,
    REJECTED,
    REVOKED,
    STATES,
    VALID,
    Inventory,
    Judged,
    KnownCertificate,
    judge,
    normalized,
    readable_objects,
)
from mooring.cli.cluster import ChosenCluster, cluster_options
from mooring.cli.options.flags import LISTED, NODE, REPORTED, REVOCATION, output_option
from mooring.cli.printing import echo, token_cell
from mooring.cli.serverreport import ServerReport
from mooring.cli.valuecompletion import complete_node
from mooring.client.cluster import ClusterClient
from mooring.client.files import read_limited
from mooring.client.serverversion import NotMooringError
from mooring.clock import human_duration, parse_rfc3339, rfc3339
from mooring.controllers.certificates.sanpolicy.evidence import (
    CONFIG_MAPS,
    ENDPOINTS,
    NODES,
    PUBLISHED_NAMESPACE,
    SERVICES,
    Reserved,
    conflicts,
)
from mooring.errors import ConfigError, ForbiddenError, UnreadableObjectError
from mooring.identity import NODE_PREFIX
from mooring.pki.errors import PkiError
from mooring.pki.keys import accepted_public_key, public_key_fingerprint
from mooring.pki.x509 import names
from mooring.pki.x509.bundles import certificates_among, certificates_pem, key_identities
from mooring.pki.x509.certificate import Certificate
from mooring.pki.x509.clientcertificate import PathCertificate, RecordedCertificate
from mooring.pki.x509.profiles import BACKDATE
from mooring.pki.x509.signers import K3S_KUBELET_SERVING, KUBELET_SERVING, machine_of
from mooring.trust.discovery import clusterinfo

# Warnings about machines whose serving certificates have names of API servers, for `mooring certs list`.
#
# Rules kept here:
# * The names of API servers, and the machines that have certificates for them, follow from the same objects as in the server
#   (`mooring.controllers.certificates.sanpolicy.evidence`).
# * The serial numbers are those of the serving certificates in the issuance log that have not ended. It does not say which names
#   each has.
# * A user who may not read the names of the servers gets no warning.


async def serving_name_warnings(client: ClusterClient, known: Inventory, now: datetime) -> Sequence[str]:
    """Return a sentence for each machine with a serving certificate for a name of an API server."""
    published = await readable_objects(client, CONFIG_MAPS, PUBLISHED_NAMESPACE)
    if published is None:
        return ()
    views = {
        CONFIG_MAPS: FixedView(
            [*published, *(await readable_objects(client, CONFIG_MAPS, clusterinfo.NAMESPACE) or ())]
        ),
        SERVICES: FixedView(await readable_objects(client, SERVICES, "default") or ()),
        ENDPOINTS: FixedView(await readable_objects(client, ENDPOINTS, "default") or ()),
        MACHINES: FixedView(await readable_objects(client, MACHINES) or ()),
        NODES: FixedView(known.nodes or ()),
        IDENTITIES: FixedView(known.identities),
    }
    try:
        names = Reserved().api_servers(views, now)
    except UnreadableObjectError as error:
        return (f"{error}: machines with certificates for names of API servers are not named here",)
    return [
        f"{conflict}. Serial numbers of its serving certificates: {', '.join(_serials(conflict.node, known, now)) or 'unknown'}"
        for conflict in conflicts(names, views, now)
    ]


def _serials(node: str, known: Inventory, now: datetime) -> Iterator[str]:
    """Yield the serial numbers of the serving certificates of a node that have not ended."""
    for number, entry in known.issued.items():
        subject = {KUBELET_SERVING: f"{NODE_PREFIX}{node}", K3S_KUBELET_SERVING: node}.get(entry.get("signer", ""))
        if subject and entry.get("subject") == subject and parse_rfc3339(entry["notAfter"]) > now:
            yield number


# `mooring certs list`: list the certificates that a cluster knows, with their state.
#
# Rules kept here:
# * Known are the client certificates of machines (NodeIdentity), their serving certificates and those of users (issuance log),
#   those of the servers in the kubeconfig, and those on the denylist. What the user may not read is a warning.
# * A machine that has a serving certificate for a name of an API server is a warning, for a user who may read what tells it.
# * The table fits 80 columns; `-o wide` has the others.

HEADERS = ("NAME", "KIND", "SERIAL", "EXPIRES", "STATE")
WIDE = ("REASON", "USER", "TOKEN", "FROM", "RENEWED", "PUBLIC KEY", "REVOKED BY")
_NONE = "<none>"


@click.command("list")
@click.option(
    "--node",
    type=NODE,
    default="",
    metavar="NAME",
    help="Only certificates of this node.",
    shell_complete=complete_node,
)
@click.option("--kind", type=click.Choice(KINDS), help="Only certificates of this kind.")
@click.option("--state", type=click.Choice(STATES), help="Only certificates in this state.")
@output_option(*LISTED)
@cluster_options
def list_certificates(node: str, kind: str | None, state: str | None, output: str, chosen: ChosenCluster) -> None:
    """List the certificates of machines, users and the server, with their state.

    A certificate of a user, or for the HTTPS port of a machine, is listed until 30 days after its end, and that of a Pod until
    its end; mooring issuance list has all.
    """
    now = chosen.clock.now()

    async def fetch(client: ClusterClient) -> tuple[Ends, Inventory, Sequence[str]]:
        ends, known = await chosen.retry(lambda: ending.fetch(client, chosen.selected, now))
        return ends, known, await chosen.retry(lambda: serving_name_warnings(client, known, now))

    ends, known, warnings = chosen.run(fetch)
    found = [
        one
        for one in ends.certificates
        if (not node or one.node == node) and kind in (None, one.kind) and state in (None, one.state)
    ]
    unlisted = [f"not listed: {one}" for one in ends.unreadable]
    for warning in (*([known.warning] if known.warning else ()), *unlisted, *warnings):
        echo(f"warning: {warning}", err=True)
    print_list(found, output, now)


def print_list(found: Sequence[KnownCertificate], form: str, now: datetime) -> None:
    """Print certificates in one of the forms of a list."""
    if form in ("json", "yaml"):
        items = [one.document() for one in found]
        printing.print_document({"kind": "List", "apiVersion": "v1", "metadata": {}, "items": items}, form)
    elif form == "name":
        for one in found:
            echo(one.serial_number)
    elif not found:
        echo("No certificates found.", err=True)
    else:
        is_wide = form == "wide"
        rows = [(*_cells(one, now), *(_wide_cells(one, now) if is_wide else ())) for one in found]
        printing.print_table((*HEADERS, *(WIDE if is_wide else ())), rows)


def _cells(one: KnownCertificate, now: datetime) -> tuple[str, ...]:
    return one.name or "<unknown>", one.kind, one.serial_number, _expiry(one.expires, now), one.state


def _wide_cells(one: KnownCertificate, now: datetime) -> tuple[str, ...]:
    token = token_cell(one.token, one.join_rule)
    found = (one.reason, one.user, token, one.source, _renewal(one, now), one.public_key, one.revoked_by)
    return tuple(cell or _NONE for cell in found)


def _renewal(one: KnownCertificate, now: datetime) -> str:
    """Return when the next certificate took its place."""
    if not one.renewed_at:
        return "<yes>" if one.is_renewed else ""
    return f"{human_duration(now - parse_rfc3339(one.renewed_at))} ago"


def _expiry(text: str, now: datetime) -> str:
    if not text:
        return "<unknown>"
    left = parse_rfc3339(text) - now
    return f"in {human_duration(left)}" if left > timedelta(0) else f"{human_duration(-left)} ago"


# `mooring certs show`: show what the cluster knows about a certificate, a node or an entry of the denylist.
#
# Rules kept here:
# * The argument is a file that exists, else a serial number, the name of a node, or the name of an entry.
# * The state of a certificate in a file is the verdict of the server, which judges it in a dry run (`mooring auth explain`): also
#   by its CA. For a user who may not ask that, and for a certificate that is not at hand, it follows from its end, the denylist,
#   and the membership of its node (`mooring.cli.certs.inventory`).
# * A key that stands in the file beside the certificate is neither sent nor printed.

CLIENT_CERTIFICATE = "client-certificate"
"""Name of the authenticator."""
_STATES = {
    "expired": EXPIRED,
    revocations.CERTIFICATE_REVOKED: REVOKED,
    revocations.KEY_REVOKED: REVOKED,
    revocations.NODE_REVOKED: REVOKED,
    revocations.NODE_DELETED: ENDED,
    revocations.NODE_KEY_REPLACED: ENDED,
}
"""States by the reason code of the authenticator."""
_LABELS = {
    "file": "File",
    "subject": "Subject",
    "issuer": "Issuer",
    "node": "Node",
    "user": "User",
    "description": "Description",
    "place": "Place",
    "kind": "Kind",
    "serialNumber": "Serial number",
    "publicKey": "Public key",
    "notBefore": "Not before",
    "expires": "Expires",
    "state": "State",
    "token": "Token",
    "joinRule": "Join rule",
    "identityIssuer": "Token issuer",
    "identitySubject": "Token subject",
    "from": "Asked from",
    "renewedAt": "Renewed",
    "revokedBy": "Revoked by",
    "reason": "Reason",
    "message": "Message",
    "issuedBefore": "Issued before",
    "name": "Entry",
    "expiresAt": "Needed until",
}


@click.command("show")
@click.argument("which", metavar="SERIAL|NAME|FILE")
@output_option(*REPORTED)
@cluster_options
def show(which: str, output: str, chosen: ChosenCluster) -> None:
    """Show a certificate: by serial number, by the name of its node or of its revocation, or in a file."""
    chain = _read(which) if Path(which).is_file() else ()
    if not chain:
        which = NODE.named(which) or REVOCATION.named(which) or which

    async def fetch(client: ClusterClient) -> tuple[Inventory, Sequence[ServerReport], Judged | None]:
        known = await chosen.retry(lambda: inventory.fetch(client))
        if chain:
            return known, (), await _verdict(client, chain)
        return known, await serverreport.fetch(chosen.selected, client.clock), None

    known, reports, judged = chosen.run(fetch)
    if known.warning:
        echo(f"warning: {known.warning}", err=True)
    now = chosen.clock.now()
    document = of_file(which, chain[0], known, judged, now) if chain else of_name(which, known, reports, now)
    _print(document, output)


def _read(path: str) -> Sequence[Certificate]:
    try:
        return certificates_among(read_limited(Path(path)))
    except PkiError as error:
        raise ConfigError(f"{path}: {error}") from None


async def _verdict(client: ClusterClient, chain: Sequence[Certificate]) -> Judged | None:
    """Return the server's verdict on a certificate; None for a user who may not ask for it."""
    try:
        explained = await request_explanation(client, "", {"certificate": certificates_pem(chain).decode()})
    except (ForbiddenError, NotMooringError):
        return None
    if explained.get("authenticated") is True:
        return Judged(VALID)
    steps = explained.get("authenticators")
    refused = [step for step in steps if isinstance(step, dict)] if isinstance(steps, list) else []
    reasons = [str(step["reason"]) for step in refused if step.get("name") == CLIENT_CERTIFICATE and step.get("reason")]
    reason = reasons[0] if reasons else str(explained.get("why", ""))
    return Judged(_STATES.get(reason, REJECTED), "", reason)


def of_file(path: str, leaf: Certificate, known: Inventory, judged: Judged | None, now: datetime) -> dict[str, Any]:
    """Return what is known about the certificate in a file. `judged` is the server's verdict; None when it is not known."""
    number = f"{leaf.serial_number:x}"
    public_key = f"sha256:{public_key_fingerprint(accepted_public_key(leaf.public_key()))}"
    common_name = names.common_name(leaf.subject)
    is_node = common_name.startswith(NODE_PREFIX)
    node = common_name.removeprefix(NODE_PREFIX) if is_node else machine_of(leaf.subject)
    wanted = {serial_entry(number), key_entry(public_key)}
    # Of one issuer, which the file does not name by its key.
    prefix = f"{serial_entry(number)}-"
    entries = [
        one
        for one in known.entries
        if one["metadata"]["name"] in wanted
        or one["metadata"]["name"].startswith(prefix)
        or (node and one["metadata"]["name"] == node_entry(node) and _recorded(one, number))
    ]
    if judged is None:
        judged = _judged(leaf, number, public_key, node if is_node or known.nodes is not None else "", known, now)
    shown = {
        "file": path,
        "subject": leaf.subject.rfc4514_string(),
        "issuer": leaf.issuer.rfc4514_string(),
        "node": node,
        "serialNumber": number,
        "publicKey": public_key,
        "notBefore": rfc3339(leaf.not_valid_before_utc),
        "expires": rfc3339(leaf.not_valid_after_utc),
        "state": REVOKED if entries else judged.state,
        "reason": "" if entries else judged.reason,
    }
    return _document([shown], entries)


def _judged(leaf: Certificate, number: str, public_key: str, node: str, known: Inventory, now: datetime) -> Judged:
    """Return the verdict on a certificate by its end and by the objects."""
    if leaf.not_valid_after_utc <= now:
        return Judged(EXPIRED)
    peer = RecordedCertificate(
        common_name=names.common_name(leaf.subject),
        node_name=node,
        fingerprint=leaf.fingerprint,
        serial_number=leaf.serial_number,
        public_key=public_key,
        issuer="",
        issued_at=leaf.not_valid_before_utc + BACKDATE,
        path=(PathCertificate(number, "", tuple(key_identities(leaf))),),
    )
    return judge(peer, known.views(), now)


def _recorded(entry: Obj, number: str) -> bool:
    return number in (spec_of(entry).get("knownSerialNumbers") or ())


def of_name(name: str, known: Inventory, reports: Iterable[ServerReport], now: datetime) -> dict[str, Any]:
    """Return what is known under a serial number, the name of a node or that of an entry. Raises ConfigError for nothing."""
    number = normalized(name)
    found = [
        one
        for one in known_certificates(known, reports, now)
        if one.node == name or one.serial_number == number or one.revoked_by == name
    ]
    named = {name, node_entry(name), *(one.revoked_by for one in found)}
    entries = [one for one in known.entries if one["metadata"]["name"] in named]
    if not found and not entries:
        raise ConfigError(
            f'no file, certificate, node or revocation "{name}" is known; see mooring certs list. One that ended more than 30 days '
            "ago may be in mooring issuance list"
        )
    return _document([one.document() for one in found], entries)


def _document(found: Sequence[dict[str, Any]], entries: Iterable[Obj]) -> dict[str, Any]:
    shown = [{"name": one["metadata"]["name"], **spec_of(one)} for one in entries]
    certificates_shown = [{key: value for key, value in one.items() if value} for one in found]
    return {"kind": "CertificateDetails", "certificates": certificates_shown, "revocations": shown}


def _print(document: dict[str, Any], form: str) -> None:
    if form in ("json", "yaml"):
        printing.print_document(document, form)
        return
    for index, block in enumerate((*document["certificates"], *document["revocations"])):
        if index:
            echo()
        for key, label in _LABELS.items():
            if block.get(key) is not None:
                echo(f"{label + ':':<16}{block[key]}")
