"""`mooring certs ca`, `server` and `client`: certificates without a cluster."""

from __future__ import annotations

import ipaddress
import os
import re
import secrets
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import wraps
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from mooring.cli import printing
from mooring.cli.joinline import join_line
from mooring.cli.options.flags import DURATION, Command, Option, not_empty, options_of, usage
from mooring.cli.printing import clean, echo
from mooring.client.files import check_writable, exposure, make_directory, read_limited, write_atomic
from mooring.clock import SystemClock, rfc3339
from mooring.controlplane.datadirectory import load, read_ca
from mooring.controlplane.keystore import exclusive
from mooring.controlplane.tokenkey import open_key, open_own_key
from mooring.duration import format_duration
from mooring.errors import ConfigError, MooringError
from mooring.pki.errors import PkiError
from mooring.pki.keys import (
    ALGORITHMS,
    DEFAULT_ALGORITHM,
    DeviceKey,
    PrivateKey,
    generate_key,
    load_private_key,
    private_key_pem,
)
from mooring.pki.x509 import names, profiles
from mooring.pki.x509.authority import Authority, self_signed_ca, serial_number
from mooring.pki.x509.bundles import certificates_among, certificates_pem
from mooring.pki.x509.certificate import Certificate
from mooring.pki.x509.names import IPAddress
from mooring.pki.x509.profiles import Template
from mooring.settings.addresses import DEFAULT_PORT, parse_endpoint, parse_host
from mooring.settings.declaration import split_commas
from mooring.settings.signing import PKCS11
from mooring.trust.bootstraptoken.token import parse_token
from mooring.trust.discovery.pins import pins_of

# Files and flags of `mooring certs`: the signing CA, the output files, and their checks.
#
# Rules kept here:
# * A certificate is issued from a profile and read back by an independent check, like every certificate of the control plane
#   (`mooring.pki.x509.profiles`, `mooring.pki.x509.authority`). It never outlives the CA that signs it.
# * A key is durable before its certificate. Both files have mode 0600 and are written atomically. An existing file is overwritten
#   only with `--force`, and both names are checked before anything is written.
# * A certificate below an intermediate CA is written with the intermediates after it, leaf first, without the root, so that it
#   can be presented as it is.

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
        self.check_lifetime()
        if not _FILE_NAME.fullmatch(self.name):
            raise click.UsageError(f'"{printing.clean(self.name)}" is no name for files; give another with --name')
        for path in (self.key, self.certificate):
            if os.path.lexists(path) and not self.force:
                raise ConfigError(
                    f"{path} exists already; choose another --name or --out-dir, or replace it with --force"
                )
        self.check_writable(self.key, self.certificate)

    def check_lifetime(self) -> None:
        """Raise UsageError for a short lifetime."""
        if self.lifetime < MIN_LIFETIME:
            raise click.UsageError(f"--lifetime must be at least {format_duration(MIN_LIFETIME)}")

    def check_writable(self, *paths: Path) -> None:
        """Raise ConfigError when one of the files cannot be written: a key that was made for it would be lost."""
        make_directory(self.directory)
        for path in paths:
            check_writable(path)

    def write(self, key: PrivateKey, chain: Sequence[Certificate], *, is_key_kept: bool = False) -> None:
        """Write both files, only the certificate of a key that is kept, and print a line on stderr. Raises ConfigError."""
        # The key before the certificate, which is of no use without it.
        if not is_key_kept:
            write_atomic(self.key, private_key_pem(key))
        write_atomic(self.certificate, certificates_pem(chain))
        leaf = chain[0]
        until = rfc3339(leaf.not_valid_after_utc)
        wrote = self.certificate if is_key_kept else f"{self.certificate} and {self.key}"
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


# `mooring certs ca`: create a root CA or an intermediate CA, without a cluster.
#
# A CA is for `--client-ca-file` when it signs clients, and for `--root-ca-file` when it signs the pair of `--tls-cert-file`. With
# `--data-dir` it is that of a cluster whose first server has not started: token, pin and join line are known before it exists.

_NOT_WITH_DATA_DIR = ("ca_cert", "ca_key", "force", "key_uri", "name", "out_dir")
ADDRESS = f"ADDRESS:{DEFAULT_PORT}"
"""Stands in a join line for an address that is not known yet."""


@click.command("ca")
@click.option(
    "--common-name", default=profiles.CLUSTER_CA_NAME, show_default=True, metavar="NAME", help="Name of the CA."
)
@click.option(
    "--key", "key_uri", metavar="URI", help="A key that a PKCS#11 token holds, as a pkcs11: URI. [default: a new key]"
)
@click.option(
    "--data-dir",
    default="",
    callback=not_empty,
    metavar="DIR",
    help="Data directory of a server that is to start: make the CA of its cluster there, in pki/, or keep the one that it has.",
)
@click.option(
    "--token",
    default="",
    metavar="TOKEN",
    envvar="MOORING_TOKEN",
    show_envvar=True,
    help="With --data-dir: print the join line in place of the pin, for the bootstrap token that the server is to get with its "
    "own --token.",
)
@click.option(
    "--control-plane-endpoint",
    "endpoints",
    multiple=True,
    metavar="HOST[:PORT],...",
    help=f"With --token: address of the server in the join line; repeatable, or with commas. [default: the word {ADDRESS}]",
)
@issuer_options(required=False)
@output_options("ca", profiles.CA_LIFETIME)
@click.pass_context
def ca(
    ctx: click.Context,
    data_dir: str,
    token: str,
    endpoints: Sequence[str],
    common_name: str,
    key_uri: str | None,
    ca_cert: str | None,
    ca_key: str | None,
    output: Output,
) -> None:
    """Create a CA: a root, or with --ca-cert and --ca-key an intermediate.

    With --key only the certificate is written, because the token keeps the key. Prints the pin of the CA for joining machines,
    with --data-dir and --token their join line.
    """
    if data_dir:
        mixed = [one for one in _NOT_WITH_DATA_DIR if ctx.get_parameter_source(one) is ParameterSource.COMMANDLINE]
        if mixed:
            raise click.UsageError(f"--data-dir cannot be mixed with {', '.join(map(_flag, mixed))}")
        with usage():
            lines = _lines(token, endpoints)
        echo(*lines(_cluster_ca(replace(output, directory=Path(data_dir) / "pki"), common_name)))
        return
    if endpoints or ctx.get_parameter_source("token") is ParameterSource.COMMANDLINE:
        raise click.UsageError("--token and --control-plane-endpoint are only of use with --data-dir")
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
        chain = _root(key, common_name, output.lifetime)
    output.write(key, chain, is_key_kept=isinstance(key, DeviceKey))
    echo(*_lines("", ())(certificates_pem(chain[:1])))


def _root(key: PrivateKey, common_name: str, lifetime: timedelta) -> tuple[Certificate, ...]:
    root = self_signed_ca(key, common_name, SystemClock().now(), serial_number(secrets.token_bytes), lifetime)
    return (root.certificate,)


def _cluster_ca(output: Output, common_name: str) -> bytes:
    """Return the trusted CAs of a data directory, and make the CA when there is none. Raises ConfigError, UsageError."""
    output.check_lifetime()
    check_name("--common-name", common_name)
    # The lock under which a server makes its keys: all that run at the same time get one CA.
    with exclusive(output.directory.parent):
        if os.path.lexists(output.certificate):
            echo(f"{output.certificate} is kept as it is.", err=True)
            return certificates_pem(read_ca(output.directory).trusted)
        # A run that was killed between the two files left the key, as it may be at the first start of a server.
        is_key_kept = os.path.lexists(output.key)
        output.check_writable(output.certificate, *(() if is_key_kept else (output.key,)))
        key = load(output.key, load_private_key) if is_key_kept else generate_key(output.algorithm)
        chain = _root(key, common_name, output.lifetime)
        output.write(key, chain, is_key_kept=is_key_kept)
        return certificates_pem(chain)


def _flag(field: str) -> str:
    return "--" + field.removesuffix("_uri").replace("_", "-")


def _lines(token: str, endpoints: Sequence[str]) -> Callable[[bytes], list[str]]:
    """Return a function from CAs to their pins, or with a token to the join line. Raises ConfigError."""

    def pins(ca_pem: bytes) -> list[str]:
        return [str(pin) for pin in pins_of(ca_pem)]

    if not token:
        if endpoints:
            raise ConfigError("--control-plane-endpoint is only of use with --token")
        return pins
    shown = parse_token(token).reveal()
    hosts = [str(parse_endpoint(text, "--control-plane-endpoint")) for text in split_commas(endpoints)] or [ADDRESS]
    return lambda ca_pem: [join_line("mooring", hosts, shown, pins(ca_pem))]


def _token_key(uri: str) -> PrivateKey:
    """Return the key in a token. Raises ConfigError."""
    try:
        return open_own_key(uri)
    except MooringError as error:
        raise ConfigError(f"--key: {error}") from None


# `mooring certs server`: create a serving certificate, without a cluster.


@click.command("server")
@issuer_options(required=True)
@click.option("--dns", multiple=True, metavar="NAME,...", help="DNS name of the server; repeatable, or with commas.")
@click.option("--ip", multiple=True, metavar="IP,...", help="IP address of the server; repeatable, or with commas.")
@click.option("--common-name", default="", metavar="NAME", help="Subject. [default: the first name or address]")
@output_options("server", profiles.LIFETIME)
def server(
    ca_cert: str,
    ca_key: str,
    dns: Sequence[str],
    ip: Sequence[str],
    common_name: str,
    output: Output,
) -> None:
    """Create a serving certificate with the names and addresses under which clients reach the server."""
    output.check()
    with usage():
        hosts, addresses = (
            [_dns_name(text) for text in split_commas(dns)],
            [_ip_address(text) for text in split_commas(ip)],
        )
    if not hosts and not addresses:
        raise click.UsageError("give at least one --dns or --ip: clients check nothing else")
    now, issuer, key = SystemClock().now(), read_issuer(ca_cert, ca_key), generate_key(output.algorithm)
    subject = common_name or next(iter([*hosts, *map(str, addresses)]))
    template = profiles.serving(key.public_key(), now, subject, hosts, addresses, output.lifetime)
    output.write(key, issuer.issue(template, now))


def _dns_name(text: str) -> str:
    """Return a DNS name, which may begin with a wildcard label. Raises ConfigError."""
    star, rest = ("*.", text[2:]) if text.startswith("*.") else ("", text)
    host = parse_host(rest, "--dns")
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return star + host
    raise ConfigError(f'--dns: "{text}" is an IP address; give it with --ip')


def _ip_address(text: str) -> IPAddress:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        raise ConfigError(f'--ip: "{clean(text)}" is not an IP address') from None


# `mooring certs client`: create a client certificate, without a cluster.


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
