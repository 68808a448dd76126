"""`mooring token generate`: one fresh token.

Source: docs/protocol/bootstrap-tokens.md#the-kubeadm-token-commands.

Rules kept here: no server is asked, nothing is written, and nothing heavy is imported: this must feel instant (≤ 150 ms).
"""

from __future__ import annotations

import secrets

import click

from mooring.cli.printing.output import echo
from mooring.trust.bootstraptoken.token import generate_token


@click.command("generate")
def generate() -> None:
    """Print a fresh bootstrap token.

    No server is asked: give the token to `mooring init --token` or to `mooring token create` to make it known.
    """
    echo(generate_token(secrets.token_bytes).reveal())
