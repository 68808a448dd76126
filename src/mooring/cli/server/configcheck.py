"""`mooring config check`: report all mistakes in a configuration file, and in the files that it names.

Rules kept here:
* All mistakes are reported at once: first in keys and types; then in values, and in files that the server reads at a start
  (`mooring.controlplane.dryrun`). After each mistake the key is left out and the check goes on.
* Environment variables win over the file, as they do for the server.
* Exit code 1 when there is a mistake, else 0 and the list of authenticators. Values are printed only where the errors of the server
  print them.
"""

from __future__ import annotations

import contextlib
import io
import logging
import re
import secrets
from collections.abc import Iterator, Mapping
from typing import Any

import click

from mooring.cli import printing
from mooring.cli.options.configfile import ConfigFile, Problem, default_path, read
from mooring.cli.options.server import server_configuration, server_options
from mooring.cli.printing import echo, redacted
from mooring.clock import SystemClock
from mooring.controlplane.configuration import ServerConfig, declared_settings
from mooring.controlplane.dryrun import dry_run
from mooring.errors import ConfigError, MooringError
from mooring.settings.serving import AuthorizationSettings
from mooring.settings.storage import StorageSettings

Authenticators = tuple[tuple[str, str], ...]
"""Names of authenticators, each with the setting that turns it on."""
_KEY = re.compile(r"([a-z][a-z0-9-]*)(?:\[|:)")
"""Beginning of an error about a key."""


@click.command("check")
@click.argument("file", default="", metavar="[FILE]")
def check(file: str) -> int:
    """Read a configuration file, and every file that it names, as a server would; start nothing.

    Without FILE it is the default one. All mistakes are reported at once.
    """
    path = file or default_path()
    if not path:
        raise click.UsageError("give the file to check: there is none in the default place")
    found = read(path, declared_settings(), named=bool(file))
    problems = list(found.problems)
    with _collected_warnings() as warnings:
        config, rows = _check_values(found, problems)
    for problem in problems:
        echo(f"{path}: {redacted(str(problem))}", err=True)
    for line in warnings:
        echo(f"Warning: {line}", err=True)
    if problems or config is None:
        mistakes = "one mistake" if len(problems) == 1 else f"{len(problems)} mistakes"
        echo(f"Error: {path} has {mistakes}; no server would start with it", err=True)
        return 1
    _print_authenticators(path, found, config, rows)
    return 0


def _server_command() -> click.Command:
    """Return a command with the flags of a server, which parses them and does nothing."""

    @server_options
    def nothing(**flags: Any) -> None:
        """Take the flags."""

    return click.command("server")(nothing)


def _check_values(found: ConfigFile, problems: list[Problem]) -> tuple[ServerConfig | None, Authenticators]:
    """Check values and files, and add the mistakes to `problems`. The key of each mistake is left out of the next round.

    Returns the configuration that remains, and the names of its authenticators; None when an error is about no key. A mistake in a
    key that was left out before is not reported again.
    """
    values = dict(found.values)
    left_out = {problem.key for problem in problems}
    while True:
        left = ConfigFile(found.path, values)
        try:
            config = _configuration(left)
            return config, dry_run(config, SystemClock(), secrets.token_bytes)
        except MooringError as error:
            text = str(error)
            keys = _keys_behind(text, values)
            problem = _problem(text, keys, found.lines)
            if _leading_key(text) not in left_out:
                problems.append(problem)
            left_out |= keys
            if not keys:
                return None, ()
            values = {name: value for name, value in values.items() if _key(name) not in keys}


def _configuration(found: ConfigFile) -> ServerConfig:
    """Return the configuration from the file and the environment. Raises ConfigError."""
    server = _server_command()
    with click.Context(server, default_map=dict(found.values)) as ctx:
        try:
            server.parse_args(ctx, ["--config", ""])
        except click.UsageError as error:
            # A variable of the environment.
            raise ConfigError(error.format_message()) from None
        return server_configuration(**{**ctx.params, "config": found})


def _key(name: str) -> str:
    return name.replace("_", "-")


def _keys_behind(text: str, values: Mapping[str, Any]) -> set[str]:
    """Return the keys of the file that an error is about: the one that it begins with, else those whose value or name it has."""
    keys = {_key(name): value for name, value in values.items()}
    if (key := _leading_key(text)) in keys:
        return {key}
    named = {key for key, value in keys.items() if isinstance(value, str) and value and value in text}
    return named or {key for key in keys if re.search(rf"(?<![a-z0-9-]){re.escape(key)}(?![a-z0-9-])", text)}


def _leading_key(text: str) -> str:
    """Return the key that an error begins with, "" when it begins with none."""
    found = _KEY.match(text)
    return found[1] if found else ""


def _problem(text: str, keys: set[str], lines: Mapping[str, int]) -> Problem:
    """Return the error with the first line of the keys that it is about."""
    leading = _KEY.match(text)
    line = min((lines[key] for key in keys if key in lines), default=0)
    if leading and leading[1] in keys and text[leading.end() - 1] == ":":
        return Problem(leading[1], line, text[leading.end() :].lstrip())
    return Problem("", line, text)


@contextlib.contextmanager
def _collected_warnings() -> Iterator[list[str]]:
    """Collect the warnings that the server would log."""
    lines: list[str] = []
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setLevel(logging.WARNING)
    logger = logging.getLogger("mooring")
    before, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        logger.propagate = before
        lines.extend(dict.fromkeys(stream.getvalue().splitlines()))


def _print_authenticators(path: str, found: ConfigFile, config: ServerConfig, rows: Authenticators) -> None:
    echo(f"{path} is good: {len(found.values)} keys. Who calls would be judged by:")
    printing.print_table(("AUTHENTICATOR", "TURNED ON BY"), rows)
    modes = ", ".join(config[AuthorizationSettings].authorization_mode)
    echo(f"Authorization: {modes}. State: {config[StorageSettings].storage_url}.")
