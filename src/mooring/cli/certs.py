"""`mooring certs ca|server|client`: keys and certificates without a cluster.

A CA is for `--client-ca-file` when it signs clients, and for `--root-ca-file` when it signs the pair of `--tls-cert-file`.

Rules kept here:
* A certificate is made from a profile and read back by its twin, as everything that the control plane issues
  (`mooring.pki.x509.profiles`, `mooring.pki.x509.issued`). Nothing outlives the CA that signs it.
* Keys are durable before their certificates; both files are 0600 and written atomically. Nothing that is there is overwritten
  without `--force`, and both names are looked at before anything is written.
* A certificate below an intermediate CA is written with the intermediates behind it, leaf first, without the root: so it can be
  presented as it is.
"""

from __future__ import annotations

import ipaddress
import os
import re
import secrets
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import ParamSpec, TypeVar

import click
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from mooring.cli.options.flags import DURATION, usage
from mooring.cli.printing import output
from mooring.cli.printing.output import echo
from mooring.client.files import exposure, make_directory, read_limited, write_atomic
from mooring.clock import SystemClock, rfc3339
from mooring.duration import format_duration
from mooring.errors import ConfigError
from mooring.pki.errors import PkiError
from mooring.pki.keys import (
    ALGORITHMS,
    DEFAULT_ALGORITHM,
    PrivateKey,
    generate_key,
    load_private_key,
    private_key_pem,
)
from mooring.pki.pem import certificate_from_der, certificates, certificates_pem
from mooring.pki.x509 import names, profiles
from mooring.pki.x509.authority import Authority, self_signed_ca, serial_number
from mooring.pki.x509.names import IPAddress
from mooring.pki.x509.profiles import Template
from mooring.settings.addresses import parse_host
from mooring.settings.kinds import split_commas
from mooring.trust.discovery.pins import pins_of

P = ParamSpec("P")
R = TypeVar("R")

MIN_LIFETIME = timedelta(minutes=1)
"""Below it a certificate is over before it is where it is used."""
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Output:
    """Where the files go, and of what kind the key is."""

    directory: Path
    name: str
    algorithm: str
    force: bool

    @property
    def certificate(self) -> Path:
        return self.directory / f"{self.name}.crt"

    @property
    def key(self) -> Path:
        return self.directory / f"{self.name}.key"

    def check(self) -> None:
        """Raises ConfigError when something is in the way."""
        if not _FILE_NAME.fullmatch(self.name):
            raise click.UsageError(f'"{output.clean(self.name)}" is no name for files; give another with --name')
        for path in (self.key, self.certificate):
            if os.path.lexists(path) and not self.force:
                raise ConfigError(
                    f"{path} exists already; choose another --name or --out-dir, or replace it with --force"
                )

    def write(self, key: PrivateKey, chain: Sequence[x509.Certificate]) -> None:
        """Both files, and a line about them on stderr. Raises ConfigError."""
        make_directory(self.directory)
        write_atomic(self.key, private_key_pem(key))
        write_atomic(self.certificate, certificates_pem(chain))
        leaf = certificate_from_der(chain[0].public_bytes(Encoding.DER))  # as whoever reads the file does
        until = rfc3339(leaf.not_valid_after_utc)
        echo(f"Wrote {self.certificate} and {self.key}: {names.printable(leaf.subject)}, valid until {until}", err=True)


@dataclass(frozen=True, slots=True)
class Issuer:
    """A CA that signs, and what is to be presented behind a certificate of its: itself and its own, without the root."""

    authority: Authority
    chain: tuple[x509.Certificate, ...]

    def issue(self, template: Template, now: datetime) -> tuple[x509.Certificate, ...]:
        """The certificate and what goes behind it. Raises PkiError."""
        return self.authority.sign(template, now, serial_number(secrets.token_bytes)), *self.chain


def output_options(default_name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Add the flags of `Output`."""
    flags = (
        click.option("--out-dir", default=".", show_default=True, metavar="DIR", help="Directory for the files."),
        click.option(
            "--name", default=default_name, show_default=True, metavar="NAME", help="Name of the files, before .crt and .key."
        ),
        click.option(
            "--key-algorithm", type=click.Choice(tuple(ALGORITHMS)), default=DEFAULT_ALGORITHM, show_default=True,
            help="Kind of key.",
        ),
        click.option("--force", is_flag=True, help="Replace files that are there."),
    )  # fmt: skip

    def add(function: Callable[P, R]) -> Callable[P, R]:
        for flag in reversed(flags):
            function = flag(function)
        return function

    return add


def issuer_options(*, required: bool) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Add the flags of the CA that signs."""
    text = "Certificate of the CA that signs, with its intermediates behind it." + (
        "" if required else " [default: the new CA signs itself]"
    )
    flags = (
        click.option("--ca-cert", required=required, metavar="FILE", help=text),
        click.option("--ca-key", required=required, metavar="FILE", help="Private key of that CA."),
    )

    def add(function: Callable[P, R]) -> Callable[P, R]:
        for flag in reversed(flags):
            function = flag(function)
        return function

    return add


def lifetime_option(default: timedelta) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Add `--lifetime`."""
    return click.option(
        "--lifetime", type=DURATION, default=format_duration(default), show_default=True,
        help="How long the certificate is valid; never longer than its CA.",
    )  # fmt: skip


@click.command("ca")
@click.option(
    "--common-name", default=profiles.CLUSTER_CA_NAME, show_default=True, metavar="NAME", help="Name of the CA."
)
@issuer_options(required=False)
@lifetime_option(profiles.CA_LIFETIME)
@output_options("ca")
def ca(
    common_name: str,
    ca_cert: str | None,
    ca_key: str | None,
    lifetime: timedelta,
    out_dir: str,
    name: str,
    key_algorithm: str,
    force: bool,
) -> None:
    """Make a CA: a root, or with --ca-cert and --ca-key an intermediate.

    Prints the pin of the CA, which joining machines may be given.
    """
    if (ca_cert is None) != (ca_key is None):
        raise click.UsageError("--ca-cert and --ca-key are given together")
    target = _target(out_dir, name, key_algorithm, lifetime, force=force)
    _named(common_name)
    now = SystemClock().now()
    key = generate_key(key_algorithm)
    if ca_cert is not None and ca_key is not None:
        issuer = _issuer(ca_cert, ca_key)
        if issuer.authority.certificate.subject == names.subject(common_name):
            raise click.UsageError("--common-name must be another than that of the CA that signs")
        chain = issuer.issue(profiles.certificate_authority(key.public_key(), now, common_name, lifetime), now)
    else:
        root = self_signed_ca(key, common_name, now, serial_number(secrets.token_bytes), lifetime)
        chain = (root.certificate,)
    target.write(key, chain)
    echo(str(pins_of(certificates_pem(chain[:1]))[0]))


@click.command("server")
@issuer_options(required=True)
@click.option("--dns", multiple=True, metavar="NAME,...", help="DNS name of the server; repeatable, or with commas.")
@click.option("--ip", multiple=True, metavar="IP,...", help="IP address of the server; repeatable, or with commas.")
@click.option("--common-name", default="", metavar="NAME", help="Subject. [default: the first name or address]")
@lifetime_option(profiles.LIFETIME)
@output_options("server")
def server(
    ca_cert: str,
    ca_key: str,
    dns: Sequence[str],
    ip: Sequence[str],
    common_name: str,
    lifetime: timedelta,
    out_dir: str,
    name: str,
    key_algorithm: str,
    force: bool,
) -> None:
    """Make a serving certificate with the names and addresses under which clients reach the server."""
    target = _target(out_dir, name, key_algorithm, lifetime, force=force)
    with usage():
        hosts, addresses = [_host(text) for text in split_commas(dns)], [_address(text) for text in split_commas(ip)]
    if not hosts and not addresses:
        raise click.UsageError("give at least one --dns or --ip: clients look at nothing else")
    now, issuer, key = SystemClock().now(), _issuer(ca_cert, ca_key), generate_key(key_algorithm)
    subject = common_name or next(iter([*hosts, *map(str, addresses)]))
    template = profiles.serving(key.public_key(), now, subject, hosts, addresses, lifetime)
    target.write(key, issuer.issue(template, now))


@click.command("client")
@issuer_options(required=True)
@click.option("--common-name", required=True, metavar="USER", help="User name.")
@click.option(
    "--organization", multiple=True, metavar="GROUP,...", help="A group of the user; repeatable, or with commas."
)
@click.option("--uid", metavar="UID", help="UID of the user.")
@lifetime_option(profiles.LIFETIME)
@output_options("client")
def client(
    ca_cert: str,
    ca_key: str,
    common_name: str,
    organization: Sequence[str],
    uid: str | None,
    lifetime: timedelta,
    out_dir: str,
    name: str,
    key_algorithm: str,
    force: bool,
) -> None:
    """Make a client certificate: the common name is the user, each organization a group.

    The server takes it when the CA is in its --client-ca-file. What the user may do is for RBAC to say.
    """
    target = _target(out_dir, name, key_algorithm, lifetime, force=force)
    _named(common_name)
    for group in organization:
        _said("--organization", group)
    if uid is not None:
        _said("--uid", uid)
    now, issuer, key = SystemClock().now(), _issuer(ca_cert, ca_key), generate_key(key_algorithm)
    template = profiles.client(key.public_key(), now, common_name, split_commas(organization), lifetime, uid or "")
    target.write(key, issuer.issue(template, now))


def _target(directory: str, name: str, algorithm: str, lifetime: timedelta, *, force: bool) -> Output:
    if lifetime < MIN_LIFETIME:
        raise click.UsageError(f"--lifetime must be at least {format_duration(MIN_LIFETIME)}")
    target = Output(Path(directory), name, algorithm, force)
    target.check()
    return target


def _named(common_name: str) -> None:
    _said("--common-name", common_name)


def _said(flag: str, text: str) -> None:
    """Raises UsageError for what is no name: a variable of a script that was empty, a line break behind it."""
    if not text.strip():
        raise click.UsageError(f"{flag} must not be empty")
    if not text.isprintable():
        raise click.UsageError(f"{flag} must be printable text on one line")


def _issuer(certificate_file: str, key_file: str) -> Issuer:
    """The CA in these files. Raises ConfigError."""
    chain_pem, key_pem = read_limited(Path(certificate_file)), read_limited(Path(key_file))
    if found := exposure(Path(key_file), stat.S_IROTH):
        echo(f"Warning: {found}", err=True)
    try:
        chain = certificates(chain_pem)
    except PkiError as error:
        raise ConfigError(f"--ca-cert: {certificate_file}: {error}") from None
    try:
        key = load_private_key(key_pem)
    except PkiError as error:
        raise ConfigError(f"--ca-key: {key_file}: {error}") from None
    try:
        authority = Authority(chain[0], key)
    except PkiError as error:
        raise ConfigError(f"--ca-cert: {certificate_file}: {error}") from None
    return Issuer(authority, tuple(one for one in chain if one.subject != one.issuer))


def _host(text: str) -> str:
    """A DNS name, perhaps with a wildcard as its first label. Raises ConfigError."""
    star, rest = ("*.", text[2:]) if text.startswith("*.") else ("", text)
    host = parse_host(rest, "--dns")
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return star + host
    raise ConfigError(f'--dns: "{text}" is an IP address; give it with --ip')


def _address(text: str) -> IPAddress:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        raise ConfigError(f'--ip: "{output.clean(text)}" is not an IP address') from None
