"""Flags about the token of a first start, and the lines that a first start prints.

Rules kept here (docs/protocol/bootstrap-tokens.md#the-kubeadm-token-commands): a given token is checked before any file is created.
The empty string means no token. Without the flag the first start creates a fresh token, and later starts create none, so that a
join line which was printed once expires. No join line is printed that no machine could use.
"""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import click

from mooring.authn.bootstraptoken import BootstrapTokenSettings
from mooring.cli.join.joincommand import WITHHELD, agent_line, join_line
from mooring.cli.options.flags import DURATION, options_of
from mooring.cli.printing.output import echo
from mooring.cli.token.allowance import NEVER_EXPIRES, machines
from mooring.clock import Clock, SystemClock
from mooring.duration import format_duration
from mooring.errors import ConfigError
from mooring.pki.x509.certificate import Certificate
from mooring.plane.configuration import ServerConfig
from mooring.plane.serving.trust import verifiable
from mooring.trust.bootstraptoken.restrictions import NO_RESTRICTIONS
from mooring.trust.bootstraptoken.token import BootstrapToken, generate_token, parse_token
from mooring.trust.bootstraptoken.tokensecret import new_record
from mooring.trust.discovery.pins import pins_of
from mooring.trust.k3s.cahash import ca_hash
from mooring.trust.k3s.settings import K3sSettings
from mooring.trust.k3s.token import PREFIX

first_token_options = options_of(
    click.option(
        "--token", default=None, metavar="TOKEN", envvar="MOORING_TOKEN", show_envvar=True,
        help='Token to create; "" creates none. [default: a fresh one on the first start, none later]',
    ),
    click.option("--token-ttl", type=DURATION, default="24h0m0s", show_default=True,
                 help="How long the token lives; 0 means for ever."),
    click.option("--skip-token-print", is_flag=True, help="Print <value withheld> instead of the token."),
)  # fmt: skip
"""Flags about the token of the first start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstTokenFlags:
    """Values of the flags about the token. `text` None: a fresh token on the first start; empty: none."""

    text: str | None
    ttl: timedelta
    withheld: bool

    def token(self, first_start: bool) -> BootstrapToken | None:
        """Return the token to create, or None. Raises TokenError."""
        if self.text is None:
            return generate_token(secrets.token_bytes) if first_start else None
        return parse_token(self.text) if self.text else None

    def check(self, clock: Clock) -> None:
        """Raise TokenError for a token or a ttl that is not valid."""
        new_record(self.token(True) or generate_token(secrets.token_bytes), clock.now(), ttl=self.ttl)

    def check_accepted(self, config: ServerConfig) -> None:
        """Raise ConfigError for a token that the server would not accept."""
        if self.text and not accepts_tokens(config):
            raise ConfigError(
                "token: the server accepts no bootstrap token, because enable-bootstrap-token-auth is false"
            )


@dataclass(frozen=True, slots=True)
class Serving:
    """The serving certificate with its chain, and the published CAs that verify it."""

    chain: Sequence[Certificate]
    ca_pem: bytes


def accepts_tokens(config: ServerConfig) -> bool:
    """Return True when the server accepts bootstrap tokens."""
    return config[BootstrapTokenSettings].enable_bootstrap_token_auth


def print_next_steps(
    config: ServerConfig,
    serving: Serving,
    token: BootstrapToken | None,
    flags: FirstTokenFlags,
) -> None:
    """Print the join line, with the pins of the CAs that verify the server, and how to administrate.

    A join line that no machine could use is not printed: its addresses are those that the serving certificate names.
    """
    serving_ca_pem = serving.ca_pem
    usable = verifiable(config.endpoints, serving.chain, serving_ca_pem, SystemClock().now())
    admin = shlex.quote(str(Path(config.data_dir) / "admin.conf"))
    if not accepts_tokens(config):
        echo("Bootstrap tokens are turned off: no machine joins with a token.")
    elif token is None:
        echo("No token was made. To let a machine join, make one:")
        echo(f"  mooring token create --print-join-command --kubeconfig {admin}")
    elif not usable:
        echo(
            f"A token was made (id {token.id}), but no machine can join: the serving certificate names no published address, or no "
            "published CA verifies it. The log says which.",
            "Once that is mended, print the join line:",
            f"  mooring token create --print-join-command --kubeconfig {admin}",
        )
    else:
        endpoints = [str(endpoint) for endpoint in usable]
        pins = [str(pin) for pin in pins_of(serving_ca_pem)]
        shown = WITHHELD if flags.withheld else token.reveal()
        life = f"for {format_duration(flags.ttl)}" if flags.ttl else "until it is deleted"
        echo(f"To let a machine join (the token lets in {machines(NO_RESTRICTIONS)}, {life}), run on it as root:")
        if not flags.ttl:
            echo(NEVER_EXPIRES.format(id=token.id), err=True)
        echo("  " + join_line("mooring", endpoints, shown, pins))
        echo("or, where kubeadm is to do it:")
        echo("  " + join_line("kubeadm", endpoints[:1], shown, pins))
        if config[K3sSettings].k3s_supervisor:
            echo("or, k3s's way:")
            echo("  " + agent_line("mooring", endpoints, f"{PREFIX}{ca_hash(serving_ca_pem)}::{shown}"))
    echo("To administrate:")
    echo(f"  export KUBECONFIG={admin}")
    echo("  kubectl get nodes,csr")
