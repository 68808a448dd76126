"""Text of systemd units: words of a command line, and the sandbox of every unit.

Rules kept here (systemd.syntax, systemd.exec): a word is quoted where it must be, and no specifier or variable is read in it. No
unit holds a secret: units are readable for every user.
"""

from __future__ import annotations

import os
import pwd
import shutil
import stat
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import click

from mooring.duration import format_duration
from mooring.pki import tokenkeyuri
from mooring.settings.declaration import BOOLEAN, COMMA_SEPARATED, OPTIONAL_BOOLEAN, SWITCH, Setting, split_commas

_PRIVATE = ("/tmp", "/var/tmp")  # noqa: S108 - directories that PrivateTmp= replaces
SANDBOX = """\
UMask=0077
NoNewPrivileges=yes
{file_system}PrivateTmp=yes
PrivateDevices=yes
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectControlGroups=yes
ProtectClock=yes
ProtectHostname=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
"""
_SQLITE = "sqlite:"
WATCHDOG_SECONDS = 60
"""Seconds without a sign of life after which systemd starts the process again: as long as for a worker of a server."""


def program_words(given: str) -> list[str]:
    """Return the beginning of a command line of this program: what `--program` gave, else what runs now. Raises UsageError."""
    if given and not Path(given).is_absolute():
        raise click.UsageError("--program must be an absolute path")
    if not given and Path(sys.argv[0]).name == "__main__.py":
        return [sys.executable, "-m", "mooring"]
    return [str(Path(given or shutil.which(sys.argv[0]) or sys.argv[0]).absolute())]


def hidden_program(path: Path, user: str) -> str:
    """Return why a service of systemd that runs as `user` cannot start the program at `path`; "" when no reason is known."""
    if any(path.is_relative_to(hidden) for hidden in _PRIVATE):
        return f"{path} is below {' or '.join(_PRIVATE)}, which the service does not see (PrivateTmp=)"
    try:
        closed = next((one for one in reversed(path.parents) if user != "root" and not _may_enter(one, user)), None)
    except OSError:
        return ""  # it is not on this machine: the unit is for another one
    return f"{path} is below {closed}, into which the user {user} may not look" if closed is not None else ""


def _may_enter(directory: Path, user: str) -> bool:
    found = directory.stat()
    try:
        account = pwd.getpwnam(user)
    except KeyError:  # systemd makes the user
        return bool(found.st_mode & stat.S_IXOTH)
    if found.st_uid == account.pw_uid:
        return bool(found.st_mode & stat.S_IXUSR)
    if found.st_gid in os.getgrouplist(user, account.pw_gid):
        return bool(found.st_mode & stat.S_IXGRP)
    return bool(found.st_mode & stat.S_IXOTH)


def arguments_of(settings: Iterable[Setting], values: Mapping[str, Any]) -> list[str]:
    """Return the arguments that give these settings their values. Raises UsageError for a secret."""
    found: list[str] = []
    for one in settings:
        if one.field not in values:
            continue
        if one.secret:
            raise click.UsageError(
                f"--{one.name} is a secret, and every user can read a unit: put it into the file of --config"
            )
        value, flag = values[one.field], f"--{one.name}"
        if one.value_type is SWITCH:
            found.append(flag)
        elif one.value_type in (BOOLEAN, OPTIONAL_BOOLEAN):
            found.append(f"{flag}={str(value).lower()}")
        else:
            texts = [text_of(one, each) for each in (value if isinstance(value, tuple) else (value,))]
            found += [part for text in texts for part in (flag, text)]
    return found


def text_of(setting: Setting, value: Any) -> str:
    """Return a value as the command line writes it: a path is absolute, because it may run in another directory."""
    if isinstance(value, timedelta):
        return format_duration(value)
    text = str(value)
    if setting.metavar in ("FILE", "DIR", "PATH"):
        parts = split_commas((text,)) if setting.value_type is COMMA_SEPARATED else (text,)
        return ",".join(map(_absolute, parts))
    if setting.metavar == "NAME=CERT,KEY":
        name, _, files = text.partition("=")
        return f"{name}={','.join(map(_absolute, files.split(',', 1)))}"
    if setting.metavar == "URL" and text.startswith(_SQLITE) and "://" not in text:
        return f"{_SQLITE}{Path(text.removeprefix(_SQLITE)).absolute()}"
    return text


def _absolute(path: str) -> str:
    """Return a path that does not depend on the directory. A key in a token has a URI in place of a path."""
    return path if path in ("", "-") or path.startswith(tokenkeyuri.SCHEME) else str(Path(path).absolute())


def command_line(arguments: Sequence[str]) -> str:
    """Return a command line for ExecStart. Raises UsageError for an argument with a line break, which no unit can hold.

    systemd reads no variable in the path of the program, and no `$$` either.
    """
    program, *rest = map(quote, arguments)
    return " ".join((program, *(one.replace("$", "$$") for one in rest)))


def quote(argument: str) -> str:
    """Return one word of a unit, quoted where needed, without specifiers. Raises UsageError for a line break."""
    if not argument.isprintable():
        raise click.UsageError("a unit cannot hold line breaks or control characters: put the command into a script")
    escaped = specifiers(argument.replace("\\", "\\\\"))
    if argument and not any(one in argument for one in " \"';"):
        return escaped
    return '"' + escaped.replace('"', '\\"') + '"'


def specifiers(text: str) -> str:
    """Return `text` so that systemd reads no specifier in it."""
    return text.replace("%", "%%")
