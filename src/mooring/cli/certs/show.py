"""`mooring certs show`: show what the cluster knows about a certificate, a node or an entry of the denylist.

Rules kept here:
* The argument is a file that exists, else a serial number, the name of a node, or the name of an entry.
* The state of a certificate follows from its end and the denylist. Whether the server trusts its CA is not judged: `mooring auth
  explain` does that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import click
from cryptography import x509

from mooring.api.meta.printcolumns import spec_of
from mooring.api.mooring.certificaterevocation import key_entry, node_entry, serial_entry
from mooring.apimachinery.schema import Obj
from mooring.cli import cluster
from mooring.cli.certs import inventory
from mooring.cli.certs.inventory import Inventory, normalized
from mooring.cli.options.client import kubeconfig_option, output_option
from mooring.cli.printing import output
from mooring.cli.printing.output import echo
from mooring.client.cluster import ClusterClient
from mooring.client.files import read_limited
from mooring.clock import SystemClock, rfc3339
from mooring.errors import ConfigError
from mooring.identity import NODE_PREFIX
from mooring.pki.errors import PkiError
from mooring.pki.keys import accepted_public_key, public_key_fingerprint
from mooring.pki.pem import certificates
from mooring.pki.x509 import names

_LABELS = {
    "file": "File",
    "subject": "Subject",
    "issuer": "Issuer",
    "node": "Node",
    "serialNumber": "Serial number",
    "publicKey": "Public key",
    "notBefore": "Not before",
    "expires": "Expires",
    "state": "State",
    "revokedBy": "Revoked by",
    "reason": "Reason",
    "message": "Message",
    "issuedBefore": "Issued before",
    "name": "Entry",
    "expiresAt": "Needed until",
}


@click.command("show")
@click.argument("which", metavar="SERIAL|NAME|FILE")
@output_option("text", "json", "yaml")
@kubeconfig_option
@cluster.timeout_option
def show(which: str, output: str, kubeconfig: str, context_name: str, timeout: timedelta) -> None:
    """Show a certificate: by serial number, by the name of its node or of its revocation, or in a file."""
    clock = SystemClock()
    leaf = _read(which) if Path(which).is_file() else None

    async def fetch(client: ClusterClient) -> Inventory:
        return await cluster.retry(lambda: inventory.fetch(client), clock, timeout)

    known = cluster.run(cluster.selected(kubeconfig, context_name), clock, fetch)
    now = clock.now()
    document = of_file(which, leaf, known, now) if leaf is not None else of_name(which, known, now)
    _print(document, output)


def _read(path: str) -> x509.Certificate:
    try:
        return certificates(read_limited(Path(path)))[0]
    except PkiError as error:
        raise ConfigError(f"{path}: {error}") from None


def of_file(path: str, leaf: x509.Certificate, known: Inventory, now: datetime) -> dict[str, Any]:
    """Return what is known about the certificate in a file."""
    number = f"{leaf.serial_number:x}"
    public_key = f"sha256:{public_key_fingerprint(accepted_public_key(leaf.public_key()))}"
    common_name = names.common_name(leaf.subject)
    node = common_name.removeprefix(NODE_PREFIX) if common_name.startswith(NODE_PREFIX) else ""
    wanted = {serial_entry(number), key_entry(public_key)}
    prefix = f"{serial_entry(number)}-"  # of one issuer, which the file does not name by its key
    entries = [
        one
        for one in known.entries
        if one["metadata"]["name"] in wanted
        or one["metadata"]["name"].startswith(prefix)
        or (node and one["metadata"]["name"] == node_entry(node) and _recorded(one, number))
    ]
    state = "expired" if leaf.not_valid_after_utc <= now else "valid"
    shown = {
        "file": path,
        "subject": leaf.subject.rfc4514_string(),
        "issuer": leaf.issuer.rfc4514_string(),
        "node": node,
        "serialNumber": number,
        "publicKey": public_key,
        "notBefore": rfc3339(leaf.not_valid_before_utc),
        "expires": rfc3339(leaf.not_valid_after_utc),
        "state": "revoked" if entries else state,
    }
    return _document([shown], entries)


def _recorded(entry: Obj, number: str) -> bool:
    return number in (spec_of(entry).get("knownSerialNumbers") or ())


def of_name(name: str, known: Inventory, now: datetime) -> dict[str, Any]:
    """Return what is known under a serial number, the name of a node or that of an entry. Raises ConfigError for nothing."""
    number = normalized(name)
    found = [
        one
        for one in known.certificates(now)
        if one.node == name or one.serial_number == number or one.revoked_by == name
    ]
    named = {name, node_entry(name), *(one.revoked_by for one in found)}
    entries = [one for one in known.entries if one["metadata"]["name"] in named]
    if not found and not entries:
        raise ConfigError(
            f'no file, certificate, node or revocation "{name}" is known; see mooring certs list. Certificates of users are '
            "recorded only when they are revoked"
        )
    return _document([one.document() for one in found], entries)


def _document(found: Sequence[dict[str, Any]], entries: Iterable[Obj]) -> dict[str, Any]:
    shown = [{"name": one["metadata"]["name"], **spec_of(one)} for one in entries]
    certificates_shown = [{key: value for key, value in one.items() if value} for one in found]
    return {"kind": "CertificateDetails", "certificates": certificates_shown, "revocations": shown}


def _print(document: dict[str, Any], form: str) -> None:
    if form in ("json", "yaml"):
        output.print_document(document, form)
        return
    for index, block in enumerate((*document["certificates"], *document["revocations"])):
        if index:
            echo()
        for key, label in _LABELS.items():
            if key in block:
                echo(f"{label + ':':<16}{block[key]}")
