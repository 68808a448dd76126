"""`mooring certs server`: create a serving certificate, without a cluster."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

import click

from mooring.cli.certs.files import Output, issuer_options, output_options, read_issuer
from mooring.cli.options.flags import usage
from mooring.cli.printing.output import clean
from mooring.clock import SystemClock
from mooring.errors import ConfigError
from mooring.pki.keys import generate_key
from mooring.pki.x509 import profiles
from mooring.pki.x509.names import IPAddress
from mooring.settings.addresses import parse_host
from mooring.settings.declaration import split_commas


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
