"""`mooring config check`: would a server start with this file?

Rules kept here:
* Everything wrong is told at once: keys and types first, all of them; then what the keys mean, and what is in the files that they
  name, read as the server reads them (`mooring.plane.rehearsal`). Behind each mistake the key is left out and the check goes on.
* Environment variables count, as they would for the server: they win over the file.
* Exit code 1 when anything is wrong, else 0 with what is on. No value of a key is printed but what the server's own errors name.
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

from mooring.cli.options.configfile import ConfigFile, Problem, default_path, read
from mooring.cli.options.server import server_configuration, server_options
from mooring.cli.printing import output
from mooring.cli.printing.output import echo
from mooring.cli.printing.redaction import redacted
from mooring.clock import SystemClock
from mooring.errors import ConfigError, MooringError
from mooring.plane.configuration import ServerConfig, declared_settings
from mooring.plane.rehearsal import rehearse
from mooring.settings.authorization import AuthorizationSettings
from mooring.settings.storage import StorageSettings

_KEY = re.compile(r"([a-z][a-z0-9-]*)(?:\[|:)")
"""How errors about a key begin."""


@click.command("check")
@click.argument("file", default="", metavar="[FILE]")
def check(file: str) -> int:
    """Read a configuration file, and every file that it names, as a server would; start nothing.

    Without FILE it is the default one. All mistakes are told at once.
    """
    path = file or default_path()
    if not path:
        raise click.UsageError("give the file to check: there is none in the default place")
    found = read(path, declared_settings(), named=bool(file))
    problems = list(found.problems)
    with _warnings() as warned:
        config, names = _rehearsed(found, problems)
    for problem in problems:
        echo(f"{path}: {redacted(str(problem))}", err=True)
    for line in warned:
        echo(f"Warning: {line}", err=True)
    if problems or config is None:
        mistakes = "one mistake" if len(problems) == 1 else f"{len(problems)} mistakes"
        echo(f"Error: {path} has {mistakes}; no server would start with it", err=True)
        return 1
    _print(path, found, config, names)
    return 0


def _server() -> click.Command:
    """A command with the flags of a server, which does nothing."""

    @server_options
    def nothing(**flags: Any) -> None:
        """Carries the flags."""

    return click.command("server")(nothing)


def _rehearsed(found: ConfigFile, problems: list[Problem]) -> tuple[ServerConfig | None, tuple[str, ...]]:
    """What is left when the key behind each mistake is left out; adds the mistakes to `problems`.

    That a key is missing which was left out before is no mistake of its own.
    """
    values = dict(found.values)
    left_out = {problem.key for problem in problems}
    while True:
        left = ConfigFile(found.path, values)
        try:
            config = _configured(left)
            return config, rehearse(config, SystemClock(), secrets.token_bytes)
        except MooringError as error:
            text = str(error)
            keys = _behind(text, values)
            problem = _problem(text, keys, found.lines)
            if _begins_with(text) not in left_out:
                problems.append(problem)
            left_out |= keys
            if not keys:
                return None, ()
            values = {name: value for name, value in values.items() if _key(name) not in keys}


def _configured(found: ConfigFile) -> ServerConfig:
    """The configuration that the file and the environment mean. Raises ConfigError."""
    server = _server()
    with click.Context(server, default_map=dict(found.values)) as ctx:
        try:
            server.parse_args(ctx, ["--config", ""])
        except click.UsageError as error:
            raise ConfigError(error.format_message()) from None  # a variable of the environment
        return server_configuration(**{**ctx.params, "config": found})


def _key(name: str) -> str:
    return name.replace("_", "-")


def _behind(text: str, values: Mapping[str, Any]) -> set[str]:
    """The keys of the file that an error is about: the one it begins with; else those that it names, by name or by value."""
    keys = {_key(name): value for name, value in values.items()}
    if (key := _begins_with(text)) in keys:
        return {key}
    named = {key for key, value in keys.items() if isinstance(value, str) and value and value in text}
    return named or {key for key in keys if re.search(rf"(?<![a-z0-9-]){re.escape(key)}(?![a-z0-9-])", text)}


def _begins_with(text: str) -> str:
    """The key that an error begins with; "" when it begins otherwise."""
    begins = _KEY.match(text)
    return begins[1] if begins else ""


def _problem(text: str, keys: set[str], lines: Mapping[str, int]) -> Problem:
    """The error at the line of the key that it is about, or that makes it one."""
    begins = _KEY.match(text)
    line = min((lines[key] for key in keys if key in lines), default=0)
    if begins and begins[1] in keys and text[begins.end() - 1] == ":":
        return Problem(begins[1], line, text[begins.end() :].lstrip())
    return Problem("", line, text)


@contextlib.contextmanager
def _warnings() -> Iterator[list[str]]:
    """What the server would warn of in its log."""
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


def _print(path: str, found: ConfigFile, config: ServerConfig, names: tuple[str, ...]) -> None:
    options = config.authentication
    said = {
        "request-header": "requestheader-client-ca-file",
        "client-certificate": "client-ca-file" if options.client_ca_file else "always",
        "token-file": "token-auth-file",
        "oidc": "authentication-config" if options.config_file else "oidc-issuer-url",
        "webhook": "authentication-token-webhook-config-file",
        "password-file": "basic-auth-file",
        "keystone": "keystone-url",
        "user-token": "login-ttl",
        "anonymous": "anonymous-auth",
        **{one.name: "authenticators" for one in options.own},
    }
    echo(f"{path} is good: {len(found.values)} keys. Who calls would be judged by:")
    output.print_table(("AUTHENTICATOR", "TURNED ON BY"), [(name, said.get(name, "always")) for name in names])
    modes = ", ".join(config[AuthorizationSettings].authorization_mode)
    echo(f"Authorization: {modes}. State: {config[StorageSettings].storage_url}.")
