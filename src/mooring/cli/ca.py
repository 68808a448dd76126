"""`mooring ca show`: show the CAs in the data directory of a server: which one issues, which are trusted, which were retired.

Rules kept here: only certificates are printed, never a key. The key of the CA is read, because it tells which CA issues.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from mooring.cli import printing
from mooring.cli.options.flags import REPORTED, output_option, server_directory
from mooring.clock import SystemClock, rfc3339
from mooring.controlplane.datadirectory import read_ca
from mooring.pki.x509.certificate import Certificate
from mooring.pki.x509.clusterca import CaState
from mooring.pki.x509.names import printable
from mooring.trust.discovery.pins import pin_of

PURPOSES = {
    "issuing": "signs clients, nodes and the serving certificate",
    "trusted": "verifies clients and the server",
    "cross-signed": "lets clients of another CA verify the server",
    "retired": "lets machines that were off come back",
}


@click.command("show")
@click.option(
    "--data-dir",
    default=None,
    metavar="DIR",
    envvar="MOORING_DATA_DIR",
    help="Data directory of the server. [default: as for mooring server]",
)
@output_option(*REPORTED)
def show(data_dir: str | None, output: str) -> None:
    """Show the CAs in the data directory of a server, with their pins.

    Without flags of the server that name other CAs, they sign and verify everything.
    """
    found = documents(read_ca(server_directory(data_dir or "") / "pki"), SystemClock().now())
    if output in ("json", "yaml"):
        printing.print_document({"authorities": found}, output)
        return
    rows = [
        (
            one["role"],
            one["subject"],
            one["pin"],
            one["notAfter"] + ("" if one["valid"] else " (expired)"),
            one["purpose"],
        )
        for one in found
    ]
    printing.print_table(("ROLE", "NAME", "PIN", "EXPIRES", "PURPOSE"), rows)


def documents(state: CaState, now: datetime) -> list[dict[str, Any]]:
    """Return one document for each certificate."""
    issuing = state.authority.certificate
    others = [("trusted", one) for one in state.trusted if one != issuing]
    listed = [("issuing", issuing), *others]
    listed += [("cross-signed", one) for one in state.cross_signed] + [("retired", one) for one in state.retired]
    return [_document(role, one, now) for role, one in listed]


def _document(role: str, certificate: Certificate, now: datetime) -> dict[str, Any]:
    end = certificate.not_valid_after_utc
    return {
        "role": role,
        "subject": printable(certificate.subject),
        "issuer": printable(certificate.issuer),
        "pin": str(pin_of(certificate)),
        "notAfter": rfc3339(end),
        "valid": certificate.not_valid_before_utc <= now < end,
        "purpose": PURPOSES[role],
    }
