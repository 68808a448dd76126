"""Files and flags of `mooring certs`: the signing CA, the output files, and their checks.

Rules kept here:
* A certificate is issued from a profile and read back by an independent check, like every certificate of the control plane
  (`mooring.pki.x509.profiles`, `mooring.pki.x509.authority`). It never outlives the CA that signs it.
* A key is durable before its certificate. Both files have mode 0600 and are written atomically. An existing file is overwritten
  only with `--force`, and both names are checked before anything is written.
* A certificate below an intermediate CA is written with the intermediates after it, leaf first, without the root, so that it can be
  presented as it is.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import wraps
from pathlib import Path
from typing import Any

import click

from mooring.cli.options.flags import DURATION, Command, Option, options_of
from mooring.cli.printing import output
from mooring.cli.printing.output import echo
from mooring.client.files import check_writable, exposure, make_directory, read_limited, write_atomic
from mooring.clock import rfc3339
from mooring.duration import format_duration
from mooring.errors import ConfigError, MooringError
from mooring.pki.errors import PkiError
from mooring.pki.keys import (
    ALGORITHMS,
    DEFAULT_ALGORITHM,
    DeviceKey,
    PrivateKey,
    load_private_key,
    private_key_pem,
)
from mooring.pki.x509 import names
from mooring.pki.x509.authority import Authority, serial_number
from mooring.pki.x509.bundles import certificates_among, certificates_pem
from mooring.pki.x509.certificate import Certificate
from mooring.pki.x509.profiles import Template
from mooring.plane.signing.tokenkey import open_key
from mooring.settings.signing import PKCS11

MIN_LIFETIME = timedelta(minutes=1)
"""A shorter lifetime is over before the certificate is in use."""
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Output:
    """Output files, the algorithm of the key, and the lifetime of the certificate."""

    directory: Path
    name: str
    algorithm: str
    force: bool
    lifetime: timedelta

    @property
    def certificate(self) -> Path:
        return self.directory / f"{self.name}.crt"

    @property
    def key(self) -> Path:
        return self.directory / f"{self.name}.key"

    def check(self) -> None:
        """Raise ConfigError when a file exists or cannot be written, UsageError for a short lifetime and a bad name of files."""
        if self.lifetime < MIN_LIFETIME:
            raise click.UsageError(f"--lifetime must be at least {format_duration(MIN_LIFETIME)}")
        if not _FILE_NAME.fullmatch(self.name):
            raise click.UsageError(f'"{output.clean(self.name)}" is no name for files; give another with --name')
        for path in (self.key, self.certificate):
            if os.path.lexists(path) and not self.force:
                raise ConfigError(
                    f"{path} exists already; choose another --name or --out-dir, or replace it with --force"
                )
        make_directory(self.directory)  # before a key is made and a certificate signed, which would be lost
        for path in (self.key, self.certificate):
            check_writable(path)

    def write(self, key: PrivateKey, chain: Sequence[Certificate]) -> None:
        """Write both files, of a key in a token only the certificate, and print a line on stderr. Raises ConfigError."""
        if not isinstance(key, DeviceKey):
            write_atomic(self.key, private_key_pem(key))
        write_atomic(self.certificate, certificates_pem(chain))
        leaf = chain[0]
        until = rfc3339(leaf.not_valid_after_utc)
        wrote = self.certificate if isinstance(key, DeviceKey) else f"{self.certificate} and {self.key}"
        echo(f"Wrote {wrote}: {names.printable(leaf.subject)}, valid until {until}", err=True)


@dataclass(frozen=True, slots=True)
class Issuer:
    """A signing CA, and the certificates to present after one that it signs: itself and its issuers, without the root."""

    authority: Authority
    chain: tuple[Certificate, ...]

    def issue(self, template: Template, now: datetime) -> tuple[Certificate, ...]:
        """Return the signed certificate and those to present after it. Raises PkiError."""
        return self.authority.sign(template, now, serial_number(secrets.token_bytes)), *self.chain


def output_options(default_name: str, default_lifetime: timedelta) -> Option:
    """Return the flags of `Output`, which the command gets as the argument `output`."""

    def with_output(command: Command) -> Command:
        @wraps(command)
        def writing(
            out_dir: str, name: str, key_algorithm: str, force: bool, lifetime: timedelta, **values: Any
        ) -> Any:
            return command(output=Output(Path(out_dir), name, key_algorithm, force, lifetime), **values)

        return writing

    return options_of(
        click.option(
            "--lifetime", type=DURATION, default=format_duration(default_lifetime), show_default=True,
            help="Lifetime of the certificate, at most that of its CA.",
        ),
        click.option("--out-dir", default=".", show_default=True, metavar="DIR", help="Directory for the files."),
        click.option(
            "--name", default=default_name, show_default=True, metavar="NAME", help="Name of the files, before .crt and .key."
        ),
        click.option(
            "--key-algorithm", type=click.Choice(tuple(ALGORITHMS)), default=DEFAULT_ALGORITHM, show_default=True,
            help="Algorithm of the key.",
        ),
        click.option("--force", is_flag=True, help="Replace existing files."),
        with_output,
    )  # fmt: skip


def issuer_options(*, required: bool) -> Option:
    """Return the flags of the CA that signs."""
    text = "Certificate of the signing CA, followed by its intermediates." + (
        "" if required else " [default: the new CA signs itself]"
    )
    return options_of(
        click.option("--ca-cert", required=required, metavar="FILE", help=text),
        click.option("--ca-key", required=required, metavar="FILE", help="Private key of that CA, or a pkcs11: URI."),
    )


def check_name(flag: str, text: str) -> None:
    """Raise UsageError for an empty name, from an unset variable for example, and for one that is not printable."""
    if not text.strip():
        raise click.UsageError(f"{flag} must not be empty")
    if not text.isprintable():
        raise click.UsageError(f"{flag} must be printable text on one line")


def read_issuer(certificate_file: str, key_file: str) -> Issuer:
    """Return the CA in these files, or of a certificate file and a key in a token. Raises ConfigError."""
    in_token = key_file.startswith(PKCS11)
    chain_pem, key_pem = read_limited(Path(certificate_file)), b"" if in_token else read_limited(Path(key_file))
    if not in_token and (warning := exposure(Path(key_file), stat.S_IROTH)):
        echo(f"Warning: {warning}", err=True)
    try:
        chain = certificates_among(chain_pem)
    except PkiError as error:
        raise ConfigError(f"--ca-cert: {certificate_file}: {error}") from None
    try:
        key = open_key(key_file, chain[:1]) if in_token else load_private_key(key_pem)
    except MooringError as error:
        place = "" if in_token else f"{key_file}: "
        raise ConfigError(f"--ca-key: {place}{error}") from None
    try:
        authority = Authority(chain[0], key)
    except PkiError as error:
        raise ConfigError(f"--ca-cert: {certificate_file}: {error}") from None
    return Issuer(authority, tuple(one for one in chain if one.subject != one.issuer))
