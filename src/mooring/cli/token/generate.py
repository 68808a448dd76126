"""`mooring token generate`: print a new token.

Rules kept here (docs/protocol/bootstrap-tokens.md#the-kubeadm-token-commands): no request is sent, nothing is written, and no heavy
module is imported, so that the command takes at most 150 ms.
"""

from __future__ import annotations

import secrets

import click

from mooring.cli.printing.output import echo
from mooring.cli.token.tokenformat import format_option
from mooring.trust.bootstraptoken.token import generate_token


@click.command("generate")
@format_option
def generate(token_format: str) -> None:
    """Print a new bootstrap token.

    No server is involved: give the token to `mooring init --token` or to `mooring token create`. It looks the same in both formats.
    """
    echo(generate_token(secrets.token_bytes).reveal())
