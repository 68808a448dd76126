"""`mooring token generate`: print a new token, and the format of tokens on the command line."""

from __future__ import annotations

import secrets

import click

from mooring.cli.printing import echo
from mooring.trust.bootstraptoken.token import generate_token

# Format of bootstrap tokens on the command line: kubeadm's or k3s's.
#
# Rules kept here (docs/protocol/k3s.md#token-commands): one Secret is behind both, and either way of joining takes it. The format
# decides what is printed, and the group that a token gets when none is given.

KUBEADM, K3S = "kubeadm", "k3s"


format_option = click.option(
    "--format",
    "token_format",
    type=click.Choice((KUBEADM, K3S)),
    default=KUBEADM,
    show_default=True,
    help="Format of the token: kubeadm's id.secret, or k3s's K10<hash of the CA>::id.secret.",
)


# `mooring token generate`: print a new token.
#
# Rules kept here (docs/protocol/bootstrap-tokens.md#the-kubeadm-token-commands): no request is sent, nothing is written, and no
# heavy module is imported, so that the command takes at most 150 ms.


@click.command("generate")
@format_option
def generate(token_format: str) -> None:
    """Print a new bootstrap token.

    No server is involved: give the token to `mooring init --token` or to `mooring token create`. It looks the same in both formats.
    """
    echo(generate_token(secrets.token_bytes).reveal())
