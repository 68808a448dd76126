"""Format of bootstrap tokens on the command line: kubeadm's or k3s's.

Rules kept here (docs/protocol/k3s.md#token-commands): one Secret is behind both, and either way of joining takes it. The format
decides what is printed, and the group that a token gets when none is given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import click

P = ParamSpec("P")
R = TypeVar("R")

KUBEADM, K3S = "kubeadm", "k3s"


def format_option(function: Callable[P, R]) -> Callable[P, R]:
    """Add `--format`."""
    return click.option(
        "--format",
        "token_format",
        type=click.Choice((KUBEADM, K3S)),
        default=KUBEADM,
        show_default=True,
        help="Format of the token: kubeadm's id.secret, or k3s's K10<hash of the CA>::id.secret.",
    )(function)
