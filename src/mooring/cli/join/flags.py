"""Flags, environment variables and configuration file of `join` and `agent`, and the progress of a join on standard output."""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
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
from mooring.agent.steps import Progress, Report
from mooring.cli.options.flags import Option
from mooring.cli.printing import clean, echo, redacted
from mooring.client.files import MAX_READ, exposure, os_reason, read_limited, refuse_other_writers
from mooring.errors import ConfigError
from mooring.secret import Secret
from mooring.settings.declaration import Setting, Settings
from mooring.trust.discovery.fetch import Polling
from mooring.trust.joinconfiguration import JoinSettings, MemberSettings
from mooring.trust.k3s.agentfile import AgentFile, read_agent_file
from mooring.trust.nodename import name_note, parse_code

# Progress of a join on standard output.
#
# Rules kept here: each finished step is one line, `[step] text (12 ms)`. A terminal also shows the present state of a step in a
# line that is replaced; warnings, failures and plans stay. The names of steps are an interface (`mooring.agent.steps`).


def line(progress: Progress) -> str:
    """Return `[step] text (12 ms)`, without the time while the step runs."""
    text = redacted(clean(progress.message))
    return f"[{progress.step}] {text}" + ("" if progress.seconds is None else f" ({elapsed(progress.seconds)})")


def elapsed(seconds: float) -> str:
    """Return a duration such as `12 ms` or `1.3 s`."""
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


@contextmanager
def progress_printer() -> Iterator[Report]:
    """Yield the function that prints the progress of one join, with a spinner on a terminal."""
    if not sys.stdout.isatty():
        yield lambda progress: echo(line(progress))
        return
    # Only a terminal needs it.
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    with console.status("joining") as status:

        def report(progress: Progress) -> None:
            if progress.transient:
                status.update(f"{progress.step}: {clean(redacted(progress.message))}".replace("[", "\\["))
            else:
                console.print(line(progress), markup=False)

        yield report


# Configuration file of `join` and `agent`, in the form of k3s's, with its drop-ins: read with bounds, checked for other users.
#
# Rules kept here (docs/protocol/k3s.md#configuration-file-of-an-agent):
# * The drop-ins are the files `*.yaml` and `*.yml` of the directory `FILE.d`, by name. The file or one drop-in must be there when
#   the file is named.
# * Each file has a limit of bytes, and the directory one of files.
# * A file that every user may write or replace is refused, and so is one that other users may read when it holds a secret. In the
#   default place it must belong to root or to the user of this process, and so must every drop-in.

DEFAULT_CONFIG = "/etc/mooring/agent.yaml"
K3S_CONFIG = "/etc/rancher/k3s/config.yaml"
"""k3s's `--config`."""
MAX_BYTES = 1 << 20
"""Largest file: the flags of an agent have a few kB."""
MAX_DROP_INS = 64
SUFFIXES = (".yaml", ".yml")
URLS = ("http://", "https://")


def read(config: str, settings: Sequence[Setting], default: Path = Path()) -> AgentFile:
    """Return the flags of the file `config`, or of the default file, which may be missing. Raises ConfigError."""
    if config.startswith(URLS):
        raise ConfigError("--config: a URL is not fetched; save the file on this machine, and name it")
    path = Path(config) if config else default
    paths = _drop_ins(path)
    # Reading a named file that is missing reports it.
    if _is_there(path) or (config and not paths):
        paths = [path, *paths]
    for path in paths:
        # A drop-in is not named: its owner could have made its directory beside a file in /tmp.
        refuse_other_writers(path, "could send this machine to another server", named=path == Path(config))
    file = read_agent_file([(str(path), read_limited(path, MAX_BYTES)) for path in paths], settings)
    for secret_path, key in file.secrets.items():
        if Path(secret_path).is_file() and (problem := exposure(Path(secret_path))):
            raise ConfigError(f'{problem}, because it holds the secret "{key}"')
    return file


def _is_there(path: Path) -> bool:
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {os_reason(error)}") from error
    return True


def _drop_ins(path: Path) -> list[Path]:
    """Return the drop-ins beside a file, by name. Raises ConfigError."""
    directory = path.with_name(f"{path.name}.d")
    try:
        with os.scandir(directory) as entries:
            names = sorted(one.name for one in entries if one.name.lower().endswith(SUFFIXES) and not one.is_dir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise ConfigError(f"{directory} cannot be read: {os_reason(error)}") from error
    if len(names) > MAX_DROP_INS:
        raise ConfigError(f"{directory} has more than {MAX_DROP_INS} drop-ins; is it the right directory?")
    return [directory / name for name in names]


# Values of `join` and `agent`: from flags, environment variables and a configuration file, each with its source.
#
# Rules kept here:
# * The command line wins over a variable, a variable over the file, the file over the default. In a join the k3s way the file
#   wins over variables, as in k3s.
# * An error names the flag, and before it the variable, or the line of the file, that gave the value.
# * Variables that mean something else to a server of this machine have names of their own (`MOORING_AGENT_…`).

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
    return read(given.values["config"], SETTINGS, Path(given.values["root"]) / DEFAULT_CONFIG.lstrip("/"))


def names_discovery(given: Given, settings: JoinSettings) -> bool:
    """Return whether a join is asked for. The address of a file or a variable alone does not: it stays when the token is gone."""
    is_addressed = "address" in given.flags
    has_identity = settings.identity_token_file or settings.identity_token_command
    return bool(is_addressed or settings.token or settings.discovery_token or settings.discovery_file or has_identity)


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
