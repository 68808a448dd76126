"""`mooring help` and `mooring version`."""

from __future__ import annotations

import platform
from collections.abc import Sequence

import click
from click.shell_completion import get_completion_class

from mooring import __version__, build
from mooring.cli import printing as printed
from mooring.cli.options.flags import REPORTED, output_option
from mooring.cli.printing import echo


@click.command("help")
@click.argument("command", nargs=-1)
@click.pass_context
def show_help(context: click.Context, command: Sequence[str]) -> None:
    """Print the help of a command, as its --help does: mooring help token create."""
    found: click.Command = context.find_root().command
    place = context.find_root()
    for word in command:
        if not isinstance(found, click.Group):
            raise click.UsageError(f'there is no command "{" ".join(command)}"')
        # The error names the nearest command.
        _, below, _ = found.resolve_command(place, [word])
        assert below is not None
        found, place = below, click.Context(below, parent=place, info_name=word)
    echo(*found.get_help(place).splitlines())


@click.command("version")
@output_option(*REPORTED)
def version(output: str) -> None:
    """Print the version of this program."""
    python = platform.python_version()
    if output != "text":
        printed.print_document({"mooring": __version__, "commit": build.commit(), "python": python}, output)
    else:
        echo(f"mooring {build.with_commit(__version__)} (Python {python})")


# `mooring completion`: print the completion script of a shell.

SHELLS = ("bash", "zsh", "fish")


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a completion script for bash, zsh or fish.

    For example: `source <(mooring completion bash)`.
    """
    kind = get_completion_class(shell)
    # click knows every shell of SHELLS.
    assert kind is not None
    root = ctx.find_root().command
    # click runs `bash` to learn its version; the static source of the script does not need that
    script = kind(root, {}, "mooring", "_MOORING_COMPLETE")
    echo(*(script.source_template % script.source_vars()).split("\n"))
