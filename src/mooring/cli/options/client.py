"""Flags of the commands that talk to a cluster."""

from __future__ import annotations

import click

from mooring.cli.options.flags import Option, options_of

kubeconfig_option = options_of(
    click.option(
        "--kubeconfig",
        default="",
        metavar="FILE",
        help="Kubeconfig of the cluster. [default: $KUBECONFIG, ~/.kube/config, /etc/kubernetes/admin.conf, "
        "admin.conf of the data directory; the first that is there]",
    ),
    click.option(
        "--context", "context_name", default="", metavar="NAME", help="Context to use. [default: the current one]"
    ),
)


LISTED = ("table", "wide", "json", "yaml", "name")
"""Forms of a list. The table fits 80 columns."""
SHOWN = ("text", "json", "yaml", "name")
"""Forms of an object that is shown or was changed."""
REPORTED = ("text", "json", "yaml")
"""Forms of a report about something that has no name in the cluster."""


def output_option(*formats: str) -> Option:
    """Add `-o`, with the first format as default."""
    return click.option(
        "-o", "--output", "output", type=click.Choice(formats), default=formats[0], show_default=True,
        help="Form of the output.",
    )  # fmt: skip
