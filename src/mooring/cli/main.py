"""The entry point: what a command's failure looks like, and with which code the process ends.

Rules kept here:
* Failures are one line on stderr, `Error: …`, never a traceback. Exit codes: 0 done; 1 it could not be done; 2 the command line is
  wrong; 70 a fault of Mooring's own (set MOORING_DEBUG=1 for the traceback); 130 interrupted; 141 nobody reads the output.
* Nothing that looks like a token is ever repeated in an error (law 9): people paste tokens into the wrong place. An argument too
  many is not repeated at all: it may be a password.
* Only click is imported here; a command's module is imported when the command is used.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

import click

from mooring import __version__
from mooring.cli.commands import TableGroup
from mooring.cli.printing.plaintext import clean
from mooring.cli.printing.redaction import redacted
from mooring.errors import ArgumentError, MooringError

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_FAULT = 70
"""EX_SOFTWARE of sysexits.h."""
EXIT_INTERRUPTED = 130
_TOO_MANY = "Got unexpected extra argument"
"""How click begins to tell all arguments that a command has no use for."""
MAX_ERROR = 4096
"""Characters of an error: a server may answer with a message of any length."""
EXIT_NO_READER = 141
"""As a shell reports a program that SIGPIPE ended."""


def program() -> click.Group:
    """The whole command line."""
    group = TableGroup(
        "mooring",
        text="Mooring joins machines to a cluster and says who is calling: a Kubernetes-compatible control plane for "
        "identity and trust.",
    )
    click.version_option(__version__, prog_name="mooring", message="%(prog)s %(version)s")(group)
    group.context_settings = {"help_option_names": ["-h", "--help"], "max_content_width": 120}
    return group


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command line and end the process."""
    code = run(arguments)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = _no_reader()
    sys.exit(code)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; returns the exit code. Whatever goes wrong has been told on stderr."""
    try:
        result = program().main(args=arguments, prog_name="mooring", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return EXIT_USAGE
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "mooring"
        return _failed(f"{_in_one_line(error.format_message())} (see: {command} --help)", EXIT_USAGE)
    except click.ClickException as error:
        return _failed(redacted(error.format_message()), EXIT_FAILED)
    except (click.Abort, KeyboardInterrupt, EOFError):
        return EXIT_INTERRUPTED
    except ArgumentError as error:
        return _failed(redacted(str(error)), EXIT_USAGE)
    except MooringError as error:
        return _failed(redacted(str(error)), EXIT_FAILED)
    except (BrokenPipeError, SystemExit):
        return _no_reader()  # click ends the process itself for a broken pipe, and for nothing else in this mode
    except Exception as error:
        if os.environ.get("MOORING_DEBUG") == "1":
            raise
        name = type(error).__name__
        return _failed(
            f"a fault of mooring itself ({name}); set MOORING_DEBUG=1 to see where, and report it", EXIT_FAULT
        )
    return result if isinstance(result, int) else 0


def _in_one_line(message: str) -> str:
    """What click says, without its line breaks and its full stop, and without anything that looks like a token."""
    if message.startswith(_TOO_MANY):
        return "there is an argument too many"
    return " ".join(redacted(message).split()).rstrip(".")


def _failed(message: str, code: int) -> int:
    with suppress(OSError):  # nobody reads stderr either: the exit code still tells
        click.echo(f"Error: {clean(message, MAX_ERROR)}", err=True)
    return code


def _no_reader() -> int:
    """Keep the interpreter from failing again when it flushes at exit."""
    descriptor = os.open(os.devnull, os.O_WRONLY)
    os.dup2(descriptor, sys.stdout.fileno())
    os.close(descriptor)
    return EXIT_NO_READER
