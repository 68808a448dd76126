"""Values of `join` and `agent`: from flags, environment variables and a configuration file, each with its source.

Rules kept here:
* The command line wins over a variable, a variable over the file, the file over the default. In a join the k3s way the file wins
  over variables, as in k3s.
* An error names the flag, and before it the variable, or the line of the file, that gave the value.
* Variables that mean something else to a server of this machine have names of their own (`MOORING_AGENT_…`).
"""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from mooring.agent.join import JoinOptions
from mooring.agent.k3s.settings import K3sJoinSettings
from mooring.agent.settings import AgentSettings
from mooring.cli.join import k3sconfig
from mooring.cli.options.flags import Option
from mooring.cli.printing.output import echo
from mooring.client.files import MAX_READ, read_limited
from mooring.errors import ConfigError
from mooring.secret import Secret
from mooring.settings.declaration import Setting, Settings
from mooring.trust.discovery.polling import Polling
from mooring.trust.joinconfiguration import JoinSettings, MemberSettings
from mooring.trust.k3s.agentfile import AgentFile
from mooring.trust.nodename import name_note, parse_code

S = TypeVar("S", bound=Settings)

_SHARED = MemberSettings.declared()
_MORE: tuple[type[Settings], ...] = (JoinSettings, K3sJoinSettings, AgentSettings)
SUBJECTS: Mapping[type[Settings], tuple[Setting, ...]] = {
    MemberSettings: _SHARED,
    **{
        more: tuple(one for one in more.declared() if one.field not in {one.field for one in _SHARED}) for more in _MORE
    },
}
"""Settings of each subject, without those of every way in the others."""
SETTINGS = tuple(one for own in SUBJECTS.values() for one in own)
"""Every setting once. A file may hold all of them, so that one file serves `join` and `agent`."""
CONFIG_VARIABLE = "MOORING_AGENT_CONFIG"
UNKNOWN_TOKEN_SECONDS = 30.0
"""Seconds for which discovery waits for the signature of a token. A server signs a new one within a second; kube-controller-manager
may have to be elected first."""
_FLAG = re.compile(r"--([a-z][a-z0-9-]*)")


class Given:
    """Values by field, and the source of each that is not a default: a flag, a variable by name, or the line of a file."""

    def __init__(self, context: click.Context) -> None:
        parameters = {str(one.name): one for one in context.command.params}
        sources = {field: context.get_parameter_source(field) for field in parameters}
        self.values: dict[str, Any] = dict(context.params)
        self.flags = {field for field, source in sources.items() if source is ParameterSource.COMMANDLINE}
        self.variables = {
            field: str(parameters[field].envvar)
            for field, source in sources.items()
            if source is ParameterSource.ENVIRONMENT
        }
        self.lines: dict[str, str] = {}

    def add(self, file: AgentFile, *, over_variables: bool = False) -> None:
        """Take the values of a file where the command line gives none, and no variable unless the file wins over it."""
        for key, value in file.values.items():
            field = key.replace("-", "_")
            if field not in self.flags and (over_variables or field not in self.variables):
                self.values[field], self.lines[field] = value, file.places[key]
                self.variables.pop(field, None)

    def add_variable(self, field: str, variable: str) -> None:
        """Take the value of another program's variable where neither the command line nor the file gives one that is not empty."""
        if os.environ.get(variable) and (not self.values[field] or field in self.variables):
            self.values[field], self.variables[field] = os.environ[variable], variable

    def read(self, subject: type[S]) -> S:
        """Return the settings of a subject. Raises UsageError, or ConfigError when a file is wrong."""
        checked: dict[str, Any] = {}
        for one in subject.declared():
            if one.field in self.values:
                with self.explained(one.name):
                    checked[one.field] = one.checked(self.values[one.field])
        with self.explained():
            return subject(**checked)

    @contextmanager
    def explained(self, *names: str) -> Iterator[None]:
        """Report an error of these flags, or of those that it mentions, with their sources: as UsageError, unless one is a file."""
        try:
            yield
        except ConfigError as error:
            message = str(error)
            fields = [name.replace("-", "_") for name in names or _FLAG.findall(message)]
            places = {field: place for field, place in (self.variables | self.lines).items() if field in fields}
            text = f"{', '.join(places.values())}: {message}" if places else message
            if places.keys() & self.lines.keys():
                raise ConfigError(text) from None
            raise click.UsageError(text) from None


def config_option(default: str, variable: str | None = CONFIG_VARIABLE) -> Option:
    """Return a decorator that adds `--config`. `default` says which file is read without it."""
    return click.option(
        "--config",
        "-c",
        default="",
        envvar=variable,
        show_envvar=True,
        metavar="FILE",
        help="Configuration file of join and agent, in k3s's form: keys are flags without their dashes. Drop-ins are in FILE.d. "
        f"[default: {default} below --root, if it is there]",
    )


def read_config(given: Given) -> AgentFile:
    """Return the file of `--config`, else the default file below the root, if it is there. Raises ConfigError."""
    return k3sconfig.read(
        given.values["config"], SETTINGS, Path(given.values["root"]) / k3sconfig.DEFAULT_CONFIG.lstrip("/")
    )


def names_discovery(given: Given, settings: JoinSettings) -> bool:
    """Return whether a join is asked for. The address of a file or a variable alone does not: it stays when the token is gone."""
    is_addressed = "address" in given.flags
    return bool(is_addressed or settings.token or settings.discovery_token or settings.discovery_file)


def join_options(settings: JoinSettings, given: Given, **more: Any) -> JoinOptions:
    """Return the options of a join, with the machine code that a file holds. Raises ConfigError.

    Discovery ends early for a token that is unknown, unless its time was chosen.
    """
    is_time_chosen = "discovery_timeout" in {*given.flags, *given.variables, *given.lines}
    polling = Polling(
        total=settings.discovery_timeout.total_seconds(), unsigned=inf if is_time_chosen else UNKNOWN_TOKEN_SECONDS
    )
    code = _machine_code(settings.machine_code_file)
    settings = replace(settings, root=str(Path(settings.root).absolute()))
    return JoinOptions(settings=settings, polling=polling, machine_code=code, **more)


def host_name() -> str:
    """Return the name of this machine, which names its node where no name is given."""
    return socket.gethostname()


def report_lowering(settings: MemberSettings) -> None:
    """Print the line about a name of the node that was written in lower case."""
    if note := name_note(settings.node_name, host_name()):
        echo(note, err=True)


def _machine_code(path: str) -> Secret | None:
    """Return the code in a file. Raises ConfigError."""
    if not path:
        return None
    return parse_code(sys.stdin.buffer.read(MAX_READ) if path == "-" else read_limited(Path(path)))
