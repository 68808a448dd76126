"""`mooring certs client`: create a client certificate, without a cluster."""

from __future__ import annotations

from collections.abc import Sequence

import click

from mooring.cli.certs.files import Output, check_name, issuer_options, output_options, read_issuer
from mooring.clock import SystemClock
from mooring.pki.keys import generate_key
from mooring.pki.x509 import profiles
from mooring.settings.declaration import split_commas


@click.command("client")
@issuer_options(required=True)
@click.option("--common-name", required=True, metavar="USER", help="User name.")
@click.option(
    "--organization", multiple=True, metavar="GROUP,...", help="A group of the user; repeatable, or with commas."
)
@click.option("--uid", metavar="UID", help="UID of the user.")
@output_options("client", profiles.LIFETIME)
def client(
    ca_cert: str,
    ca_key: str,
    common_name: str,
    organization: Sequence[str],
    uid: str | None,
    output: Output,
) -> None:
    """Create a client certificate: the common name is the user, each organization a group.

    A server accepts it when the CA is in its --client-ca-file. RBAC decides what the user may do.
    """
    output.check()
    check_name("--common-name", common_name)
    for group in organization:
        check_name("--organization", group)
    if uid is not None:
        check_name("--uid", uid)
    now, issuer, key = SystemClock().now(), read_issuer(ca_cert, ca_key), generate_key(output.algorithm)
    template = profiles.client(
        key.public_key(), now, common_name, split_commas(organization), output.lifetime, uid or ""
    )
    output.write(key, issuer.issue(template, now))
