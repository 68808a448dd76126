"""`mooring completion`: print the completion script of a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from mooring.cli.printing.output import echo

SHELLS = ("bash", "zsh", "fish")


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a completion script for bash, zsh or fish.

    For example: `source <(mooring completion bash)`.
    """
    kind = get_completion_class(shell)
    assert kind is not None  # click knows every shell of SHELLS
    root = ctx.find_root().command
    # click runs `bash` to learn its version; the static source of the script does not need that
    script = kind(root, {}, "mooring", "_MOORING_COMPLETE")
    echo(*(script.source_template % script.source_vars()).split("\n"))
