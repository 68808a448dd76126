"""Flags that several commands share, their types, and their defaults on this machine."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from mooring.client.files import home
from mooring.duration import parse_long_duration
from mooring.errors import ArgumentError, ConfigError
from mooring.listensockets import ListenError, bound_port, close_all, listen
from mooring.settings.addresses import DEFAULT_PORT

# Defaults of a server's settings that depend on this machine: data directory and a free port.


def default_data_dir() -> str:
    """Return /var/lib/mooring for root, else the user's own data directory (XDG base directories)."""
    if os.geteuid() == 0:
        return "/var/lib/mooring"
    base = os.environ.get("XDG_DATA_HOME", "")
    # The specification requires that relative paths are ignored.
    root = Path(base) if base.startswith("/") else home() / ".local" / "share"
    return str(root / "mooring")


def data_directory(value: str) -> Path:
    """Return the data directory of `--data-dir`, by default that of this user. Raises ArgumentError for an empty flag.

    A variable that was meant to hold the directory would otherwise choose another cluster.
    """
    context = click.get_current_context(silent=True)
    if not value and context and context.get_parameter_source("data_dir") is ParameterSource.COMMANDLINE:
        raise ArgumentError("data-dir: the directory is not named; leave the flag out for the default")
    return Path(value or default_data_dir()).absolute()


READS_SERVER = "this command reads the data directory of a server, and no kubeconfig; give --data-dir"
"""End of the error of such a command without the directory."""


def server_directory(value: str) -> Path:
    """Return the data directory of a server on this machine, as `data_directory`. Raises ConfigError where there is none."""
    path = data_directory(value)
    if not path.is_dir():
        raise ConfigError(f"{path} is not there: {READS_SERVER}")
    return path


def free_port(address: str) -> int:
    """Return a TCP port that is free at an IP address now; DEFAULT_PORT when the address is not of this machine."""
    try:
        sockets = listen(address, 0)
    except ListenError:
        # The server fails to listen, with an error that names the address.
        return DEFAULT_PORT
    port = bound_port(sockets)
    close_all(sockets)
    return port


# Types and helpers of flags that several commands share.
#
# Durations are written as Go writes them (`24h0m0s`, `90s`), and may have days and weeks (`7d`, `1w`).

Command = Callable[..., Any]
"""The function of a command, which gets the values of its flags by name."""
Option = Callable[[Command], Command]
"""Adds a flag, an argument or several of them to a command."""


def options_of(*options: Option) -> Option:
    """Return one option that adds all of these, in their order in the help."""

    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def not_empty(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """Return the value of a flag that limits what a command grants or decides. Raises BadParameter for an empty one.

    `--max-joins "$LIMIT"` without that variable means no limit nowhere: the person meant one.
    """
    texts = value if isinstance(value, tuple) else (value,)
    is_default = ctx.get_parameter_source(param.name or "") is ParameterSource.DEFAULT
    if not is_default and not all(str(text).strip(" ,") for text in texts):
        raise click.BadParameter("give a value, or leave the flag out", ctx, param)
    return value


class WholeNumber(click.IntRange):
    """A number from `min` to `max`. The error about a text says so."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            try:
                int(value)
            except ValueError:
                self.fail(f'"{value}" is not a number from {self.min} to {self.max}', param, ctx)
            raise


class GoDuration(click.ParamType[timedelta]):
    """`7d`, `24h`, `1h30m`, `90s`, `0`."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        if isinstance(value, timedelta):
            return value
        try:
            return self.parse(value)
        except (ValueError, OverflowError):
            self.fail(self.problem(value), param, ctx)

    forms = "7d, 24h, 1h30m or 90s"

    def problem(self, text: str) -> str:
        """Return why a text is not a duration, with what to write."""
        if not text:
            return f"it is empty; write a duration like {self.forms}"
        if _NUMBER.fullmatch(text):
            return f'"{text}" has no unit; write {self.examples(text)}'
        return f'"{text}" is not a duration; write it like {self.forms}'

    def examples(self, number: str) -> str:
        """Return what a number without a unit may have meant."""
        return f"{number}s, {number}m or {number}h"

    def parse(self, text: str) -> timedelta:
        """Return the duration. Raises ValueError."""
        return parse_long_duration(text)


class DaysDuration(GoDuration):
    """Durations that GoDuration takes, but no negative ones; the examples have days, for ends of certificates."""

    forms = "30d, 36h or 90m"

    def examples(self, number: str) -> str:
        return f"{number}d, {number}h or {number}m"

    def parse(self, text: str) -> timedelta:
        found = super().parse(text)
        if found < timedelta(0):
            raise ValueError("negative")
        return found


class ObjectName(click.ParamType[str]):
    """`NAME`, or `TYPE/NAME` as `-o name` of a list prints it and as kubectl takes it. The value is the name alone.

    What stands before the slash is not a type where it is not a word: the client refuses such a name.
    """

    name = "name"

    def __init__(self, singular: str, plural: str, *short_names: str, group: str = "", prefix: str = "") -> None:
        self.printed = f"{singular}.{group}" if group else singular
        self._words = frozenset({singular, plural, *short_names})
        self._group = group
        self._prefix = prefix
        """Prefix of the object's name that the value lacks."""

    def named(self, text: str) -> str | None:
        """Return the name in TYPE/NAME of this type; None for anything else."""
        kind, slash, name = text.partition("/")
        word, dot, group = kind.lower().partition(".")
        is_group = not dot or (bool(self._group) and _VERSION.sub("", group) == self._group)
        return name.removeprefix(self._prefix) if slash and name and word in self._words and is_group else None

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        if not text.strip() and isinstance(param, click.Argument):
            self.fail("it is empty; give a name", param, ctx)
        name = self.named(text)
        if name is not None:
            return name
        kind, slash, _ = text.partition("/")
        if slash and _TYPE.fullmatch(kind):
            self.fail(f'"{text}" names a {kind}; give NAME or {self.printed}/NAME', param, ctx)
        return text


_TYPE = re.compile(r"[A-Za-z][A-Za-z0-9.]*")
_VERSION = re.compile(r"^v[0-9]+((alpha|beta)[0-9]+)?\.")
NODE = ObjectName("node", "nodes", "no")
REQUEST = ObjectName("certificatesigningrequest", "certificatesigningrequests", "csr", group="certificates.k8s.io")
MACHINE = ObjectName("authorizedmachine", "authorizedmachines", "machine", "machines", group="mooring.dev")
REVOCATION = ObjectName(
    "certificaterevocation", "certificaterevocations", "revocation", "revocations", group="mooring.dev"
)
JOIN_RULE = ObjectName("joinrule", "joinrules", group="mooring.dev")
TOKEN = ObjectName("secret", "secrets", prefix="bootstrap-token-")
_NUMBER = re.compile(r"[0-9]{1,18}")
DURATION, DAYS = GoDuration(), DaysDuration()
LONGEST_TIMEOUT = timedelta(minutes=5)


def check_timeout(timeout: timedelta) -> None:
    """Raise UsageError for a time limit of requests that none of them can keep, and for one that no person waits for."""
    if not timedelta() < timeout <= LONGEST_TIMEOUT:
        raise click.UsageError("--timeout must be longer than 0, and at most 5m")


@contextmanager
def usage() -> Iterator[None]:
    """Report a wrong value of the command line as a usage error, with exit code 2. No file may be read within."""
    try:
        yield
    except ConfigError as error:
        raise click.UsageError(str(error)) from None


# Flags of the commands that talk to a cluster.

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
