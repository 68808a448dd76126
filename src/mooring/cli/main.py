"""Entry point of the command line: runs a command, prints its error, sets the exit code and the process title."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from typing import NoReturn

import click

from mooring import __version__, build
from mooring.cli.commands import COMMANDS, GROUPS, TableGroup
from mooring.cli.printing import clean, redacted
from mooring.errors import ArgumentError, ConfigError, MooringError

# Process title: the command line as other users of the machine read it in `ps`, without its secrets.
#
# Rules kept here (docs/adr/0055-secrets-out-of-the-process-title.md):
# * The value of an option that takes a secret is replaced, whatever it looks like, and so is every argument that looks like a
#   token.
# * A command line without a secret is left alone: the title is the whole of it, and nothing is imported.
# * Between the start of the program and the replacement others can read the secret for some milliseconds. A file, standard input
#   and the environment do not show it at any time.

SECRET_OPTIONS = frozenset(
    {
        "--agent-token",
        "--certificate-key",
        "--cluster-secret",
        "--discovery-token",
        "--identity-token-command",
        "--new-token",
        "--notify-url",
        "--server-token",
        "--tls-bootstrap-token",
        "--token",
        "--vpn-auth",
        "-t",
    }
)
"""Options whose value is a secret, of every command, and of k3s agent. `tests/cli/test_processtitle.py` proves it complete."""
SWITCHES = "v"
"""Short options without a value, which may stand before another one in a word: `-vt`."""
HIDDEN = "(redacted)"


def without_secrets(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with their secrets replaced."""
    shown: list[str] = []
    hides_next = False
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        option = argument if argument.startswith("--") else f"{argument[:1]}{argument[1:].lstrip(SWITCHES)}"
        if hides_next:
            shown.append(HIDDEN)
        elif equals and name in SECRET_OPTIONS:
            shown.append(f"{name}={HIDDEN}")
        elif option[:2] in SECRET_OPTIONS and len(option) > len("-t"):
            shown.append(f"{argument.removesuffix(option[2:])}{HIDDEN}")
        else:
            shown.append(redacted(argument))
        hides_next = not hides_next and option in SECRET_OPTIONS
    return shown


def hide_secrets(program: str, arguments: Sequence[str]) -> None:
    """Replace the title of this process when its command line shows a secret."""
    shown = without_secrets(arguments)
    if shown != list(arguments):
        # Needed by few command lines.
        from setproctitle import setproctitle

        setproctitle(" ".join((program, *shown)))


# Entry point of the command line: runs a command, prints its error, and sets the exit code.
#
# Rules kept here:
# * An error is one line on stderr, `Error: …`, never a traceback. Exit codes: 0 success; 1 failure; 2 wrong command line; 70
#   internal error (MOORING_DEBUG=1 prints the traceback); 78 files of another machine (`mooring agent`); 130 interrupted; 141
#   closed pipe.
# * An error never repeats text that looks like a token (law 9), because users paste tokens into wrong places. It never repeats a
#   surplus argument, which may be a password.
# * An error of the file system that no command has explained is explained here, by its path and what to do: a file that this user
#   may not read, a directory in the place of a file, a full disk. It is never a fault of this program.
# * An error of a command line with an empty value says which one is empty: `--token "$(cat missing)"` is one.
# * A standard stream that the caller closed is /dev/null: what is printed is lost, and nothing fails for it.
# * Only click is imported here. The module of a command is imported when the command is used.

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_FAULT = 70
"""EX_SOFTWARE of sysexits.h."""
EXIT_INTERRUPTED = 130
_TOO_MANY = "Got unexpected extra argument"
"""Start of click's message about surplus arguments."""
_FLAG = re.compile(r"--[a-z][a-z0-9-]*|-[A-Za-z]")
_FLAG_WITHOUT_VALUE = re.compile(r"(--[a-z][a-z0-9-]*)=")
MAX_ERROR = 4096
"""Characters of an error: a message of a server can have any length."""
EXIT_NO_READER = 141
"""Status that a shell reports for a program that SIGPIPE ended."""


def program() -> click.Group:
    """Return the whole command line."""
    group = TableGroup(
        "mooring",
        text="Mooring joins machines to a cluster and says who is calling: a Kubernetes-compatible control plane for "
        "identity and trust.",
    )
    click.version_option(build.with_commit(__version__), prog_name="mooring", message="%(prog)s %(version)s")(group)
    group.context_settings = {"help_option_names": ["-h", "--help"], "max_content_width": 120}
    return group


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command line and end the process."""
    # First: a file that a command opens must not get the descriptor of a stream.
    _open_closed_streams()
    # Before the command runs: other users of the machine can read the title for as long as it does.
    hide_secrets("mooring", sys.argv[1:] if arguments is None else arguments)
    code = run(arguments)
    try:
        # Here and not at the exit of Python, where a closed pipe would print a traceback.
        sys.stdout.flush()
    except BrokenPipeError:
        code = _no_reader()
    sys.exit(code)


def _open_closed_streams() -> None:
    """Open /dev/null in place of each closed standard stream, which Python has as None.

    The lowest free descriptor is taken, which is that of the stream: no file or connection of a command gets it.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = os.fdopen(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8", errors="surrogateescape")
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code. An error has been printed on stderr."""
    words = sys.argv[1:] if arguments is None else arguments
    try:
        result = program().main(args=arguments, prog_name="mooring", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return EXIT_USAGE
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else _named_command(words)
        message = _in_one_line(error.format_message()) + _empty_values(words)
        return _print_error(f"{message} (see: {command} --help)", EXIT_USAGE)
    except click.ClickException as error:
        return _print_error(redacted(error.format_message()), error.exit_code)
    except (click.Abort, KeyboardInterrupt, EOFError):
        return EXIT_INTERRUPTED
    except ArgumentError as error:
        return _print_error(redacted(str(error)) + _empty_values(words), EXIT_USAGE)
    except ConfigError as error:
        return _print_error(redacted(str(error)) + _empty_values(words), EXIT_FAILED)
    except MooringError as error:
        return _print_error(redacted(str(error)), EXIT_FAILED)
    except SystemExit as error:
        return (
            0 if error.code == 0 else _no_reader()
        )  # click raises it in this mode for completions and a broken pipe only
    except BrokenPipeError:
        return _no_reader()
    except OSError as error:
        from mooring.client.files import file_problem

        if problem := file_problem(error):
            return _print_error(redacted(problem), EXIT_FAILED)
        return _fault(error)
    except Exception as error:
        if isinstance(error, UnicodeEncodeError) and _is_byte(error.object[error.start]):
            return _print_error("a path or a value is not valid UTF-8; rename it, or choose another", EXIT_FAILED)
        return _fault(error)
    return result if isinstance(result, int) else 0


def _named_command(words: Sequence[str]) -> str:
    """Return the command that a command line names, for an error of click that does not know it."""
    path = ""
    for word in words:
        longer = f"{path} {word}".strip()
        if longer not in COMMANDS and longer not in GROUPS:
            break
        path = longer
    return f"mooring {path}".rstrip()


def _fault(error: Exception) -> int:
    """Print that this program is wrong. Raise the error again with MOORING_DEBUG=1."""
    if os.environ.get("MOORING_DEBUG") == "1":
        raise error
    name = type(error).__name__
    return _print_error(
        f"a fault of mooring itself ({name}); set MOORING_DEBUG=1 to see where, and report it", EXIT_FAULT
    )


def _is_byte(character: str) -> bool:
    """Return True for a byte of a path or an argument that is not UTF-8, as Python holds it (PEP 383)."""
    return "\udc80" <= character <= "\udcff"


def _in_one_line(message: str) -> str:
    """Return click's message on one line, without its full stop and without text that looks like a token."""
    if message.startswith(_TOO_MANY):
        return "there is an argument too many"
    return " ".join(redacted(message).split()).rstrip(".")


def _empty_values(arguments: Sequence[str]) -> str:
    """Return the end of an error that says which values of the command line are empty; "" without one."""
    # No token is made.
    has_meaning = ("--token",) if arguments[:1] and arguments[0] in ("init", "up") else ()
    names: list[str] = []
    for before, word in pairwise(["", *arguments]):
        if before in has_meaning and not word:
            continue
        if not word:
            names.append(f"the value after {before}" if _FLAG.fullmatch(before) else "an argument")
        elif (match := _FLAG_WITHOUT_VALUE.fullmatch(word)) and match[1] not in has_meaning:
            names.append(f"the value after {match[1]}")
    return "".join(f"; {name} is empty" for name in dict.fromkeys(names))


def _print_error(message: str, code: int) -> int:
    # Stderr is closed too; the exit code remains.
    with suppress(OSError):
        click.echo(f"Error: {clean(message, MAX_ERROR)}", err=True)
    return code


def _no_reader() -> int:
    """Redirect standard output, so that the flush at exit does not fail again. Return the exit code."""
    descriptor = os.open(os.devnull, os.O_WRONLY)
    os.dup2(descriptor, sys.stdout.fileno())
    os.close(descriptor)
    return EXIT_NO_READER
