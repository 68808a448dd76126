"""Format of bootstrap tokens on the command line: kubeadm's or k3s's.

Rules kept here (docs/protocol/k3s.md#token-commands): one Secret is behind both, and either way of joining takes it. The format
decides what is printed, and the group that a token gets when none is given.
"""

from __future__ import annotations

import click

KUBEADM, K3S = "kubeadm", "k3s"


format_option = click.option(
    "--format",
    "token_format",
    type=click.Choice((KUBEADM, K3S)),
    default=KUBEADM,
    show_default=True,
    help="Format of the token: kubeadm's id.secret, or k3s's K10<hash of the CA>::id.secret.",
)
