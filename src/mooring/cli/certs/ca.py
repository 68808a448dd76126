"""`mooring certs ca`: create a root CA or an intermediate CA, without a cluster.

A CA is for `--client-ca-file` when it signs clients, and for `--root-ca-file` when it signs the pair of `--tls-cert-file`.
"""

from __future__ import annotations

import secrets

import click

from mooring.cli.certs.files import Output, check_name, issuer_options, output_options, read_issuer
from mooring.cli.printing.output import echo
from mooring.clock import SystemClock
from mooring.errors import ConfigError, MooringError
from mooring.pki.keys import PrivateKey, generate_key
from mooring.pki.x509 import names, profiles
from mooring.pki.x509.authority import self_signed_ca, serial_number
from mooring.pki.x509.bundles import certificates_pem
from mooring.plane.signing.tokenkey import open_own_key
from mooring.trust.discovery.pins import pins_of


@click.command("ca")
@click.option(
    "--common-name", default=profiles.CLUSTER_CA_NAME, show_default=True, metavar="NAME", help="Name of the CA."
)
@click.option(
    "--key", "key_uri", metavar="URI", help="A key that a PKCS#11 token holds, as a pkcs11: URI. [default: a new key]"
)
@issuer_options(required=False)
@output_options("ca", profiles.CA_LIFETIME)
def ca(
    common_name: str,
    key_uri: str | None,
    ca_cert: str | None,
    ca_key: str | None,
    output: Output,
) -> None:
    """Create a CA: a root, or with --ca-cert and --ca-key an intermediate.

    With --key only the certificate is written, because the token keeps the key. Prints the pin of the CA for joining machines.
    """
    if (ca_cert is None) != (ca_key is None):
        raise click.UsageError("--ca-cert and --ca-key are given together")
    output.check()
    check_name("--common-name", common_name)
    now = SystemClock().now()
    key = generate_key(output.algorithm) if key_uri is None else _token_key(key_uri)
    if ca_cert is not None and ca_key is not None:
        issuer = read_issuer(ca_cert, ca_key)
        if issuer.authority.certificate.subject == names.subject(common_name):
            raise click.UsageError("--common-name must differ from that of the signing CA")
        chain = issuer.issue(profiles.certificate_authority(key.public_key(), now, common_name, output.lifetime), now)
    else:
        root = self_signed_ca(key, common_name, now, serial_number(secrets.token_bytes), output.lifetime)
        chain = (root.certificate,)
    output.write(key, chain)
    echo(str(pins_of(certificates_pem(chain[:1]))[0]))


def _token_key(uri: str) -> PrivateKey:
    """Return the key in a token. Raises ConfigError."""
    try:
        return open_own_key(uri)
    except MooringError as error:
        raise ConfigError(f"--key: {error}") from None
