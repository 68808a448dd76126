"""Process title: the command line as other users of the machine read it in `ps`, without its secrets.

Rules kept here (docs/adr/0055-secrets-out-of-the-process-title.md):
* The value of an option that takes a secret is replaced, whatever it looks like, and so is every argument that looks like a token.
* A command line without a secret is left alone: the title is the whole of it, and nothing is imported.
* Between the start of the program and the replacement others can read the secret for some milliseconds. A file, standard input and
  the environment do not show it at any time.
"""

from __future__ import annotations

from collections.abc import Sequence

from mooring.cli.printing.plaintext import redacted

SECRET_OPTIONS = frozenset(
    {
        "--agent-token",
        "--certificate-key",
        "--cluster-secret",
        "--discovery-token",
        "--new-token",
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
        from setproctitle import setproctitle  # needed by few command lines

        setproctitle(" ".join((program, *shown)))
