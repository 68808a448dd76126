"""Flags of the commands that talk to a cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import click

from mooring.cli.options.flags import Decorator

P = ParamSpec("P")
R = TypeVar("R")


def kubeconfig_option(function: Callable[P, R]) -> Callable[P, R]:
    """Add `--kubeconfig` and `--context`."""
    function = click.option(
        "--context", "context_name", default="", metavar="NAME", help="Context to use. [default: the current one]"
    )(function)
    return click.option(
        "--kubeconfig",
        default="",
        metavar="FILE",
        help="Kubeconfig of the cluster. [default: $KUBECONFIG, ~/.kube/config, /etc/kubernetes/admin.conf, "
        "admin.conf of the data directory; the first that is there]",
    )(function)


def output_option(*formats: str) -> Decorator[..., Any]:
    """Add `-o`, with the first format as default."""
    return click.option(
        "-o", "--output", "output", type=click.Choice(formats), default=formats[0], show_default=True,
        help="Form of the output.",
    )  # fmt: skip
