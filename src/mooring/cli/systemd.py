"""Units of systemd: their files, and the calls of systemctl."""

from __future__ import annotations

import os
import pwd
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

import click

from mooring.client.files import MAX_READ, os_reason, read_limited, write_atomic
from mooring.duration import format_duration
from mooring.errors import ConfigError
from mooring.pki import tokenkeyuri
from mooring.settings.declaration import BOOLEAN, COMMA_SEPARATED, OPTIONAL_BOOLEAN, SWITCH, Setting, split_commas

# Text of systemd units: words of a command line, and the sandbox of every unit.
#
# Rules kept here (systemd.syntax, systemd.exec): a word is quoted where it must be, and no specifier or variable is read in it.
# No unit holds a secret: units are readable for every user.

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
        # It is not on this machine: the unit is for another one.
        return ""
    return f"{path} is below {closed}, into which the user {user} may not look" if closed is not None else ""


def _may_enter(directory: Path, user: str) -> bool:
    found = directory.stat()
    try:
        account = pwd.getpwnam(user)
    except KeyError:
        # systemd makes the user.
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


# Units on this machine: installs, starts and removes them by `systemctl`.
#
# Rules kept here:
# * A unit that this program did not write is never replaced or removed: its first line says who wrote it. Changes belong into a
#   drop-in (`systemctl edit`), which stays.
# * What can fail for good is asked before anything is written: whether systemd runs, and whether the unit is another's.
# * Where systemd does not run the machine, as in an image or a chroot, nothing is stopped or started: there is no service to
#   stop.
# * Everything may be done again: what is there already stays.
# * A `systemctl` that is found through a relative entry of PATH, such as in the current directory, is not run.

UNITS = "/etc/systemd/system"
PROGRAM = "systemctl"
SECONDS = 120.0
"""Time for one call: a start returns once the process says that it is ready."""
READABLE = 0o644


class Unit:
    """The file of one unit. `writer` is the command that installs it."""

    def __init__(self, directory: str, name: str, writer: str) -> None:
        self.name = name
        self.path = Path(directory) / f"{name}.service"
        self._writer = writer
        self._mark = f"# Written by `{writer}`; put changes into a drop-in: systemctl edit {name}\n"

    def check(self, *, start: bool) -> None:
        """Raise ConfigError when the unit cannot be installed here."""
        if _path() is None:
            raise ConfigError(f"there is no {PROGRAM} in PATH: run the command by the service manager of this machine")
        if start:
            state = self._call("is-system-running", checked=False).stdout.strip()
            if state in ("", "offline", "unknown"):
                raise ConfigError(
                    f"systemd does not run this machine: run the command by its service manager, or use {self._writer} --no-start "
                    "in an image"
                )
        if not self.path.parent.is_dir():
            raise ConfigError(f"{self.path.parent} is no directory: --unit-dir names where systemd reads units")
        self.is_own()

    def install(self, text: str, *, start: bool) -> None:
        """Write the unit, enable it, and start it, or start it again when it runs. Raises ConfigError."""
        self.check(start=start)
        write_atomic(self.path, (self._mark + text).encode(), READABLE)
        if start:
            self._call("daemon-reload")
        self._call("enable", str(self.path) if str(self.path.parent) != UNITS else self.name)
        if start:
            self._call("restart", self.name)

    def stop(self) -> None:
        """Stop the service. Raises ConfigError, also for a unit that this program did not write."""
        if self.is_own() and not self._is_offline:
            self._call("stop", self.name)

    def start(self) -> None:
        """Start the service. Raises ConfigError."""
        if not self._is_offline:
            self._call("start", self.name)

    def uninstall(self) -> bool:
        """Stop, disable and remove the unit; return False when it is not there. Raises ConfigError."""
        if not self.is_own():
            return False
        self._call("disable", *(() if self._is_offline else ("--now",)), self.name)
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be removed: {os_reason(error)}") from error
        if not self._is_offline:
            self._call("daemon-reload")
        return True

    @cached_property
    def _is_offline(self) -> bool:
        """Return True when systemd surely does not run this machine. Without an answer a service may run."""
        return self._call("is-system-running", checked=False).stdout.strip() == "offline"

    @property
    def is_masked(self) -> bool:
        """Return True when an administrator forbade the unit (`systemctl mask`): nothing starts it, and its file says nothing."""
        return os.path.realpath(self.path) == os.devnull

    def is_own(self) -> bool:
        """Return whether the unit is there, written by this program. Raises ConfigError for another's."""
        if not os.path.lexists(self.path):
            return False
        if self.is_masked:
            raise ConfigError(f"{self.path} is masked: run `systemctl unmask {self.name}` first")
        if not read_limited(self.path, MAX_READ).startswith(b"# Written by `mooring "):
            raise ConfigError(f"{self.path} was not written by {self._writer}: remove it, or keep it and use systemctl")
        return True

    def _call(self, *arguments: str, checked: bool = True) -> subprocess.CompletedProcess[str]:
        command = [PROGRAM, *arguments]
        try:
            done = subprocess.run(
                [_path() or PROGRAM, *arguments], capture_output=True, text=True, errors="replace", timeout=SECONDS, check=False,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise ConfigError(
                f"`{' '.join(command)}` has not ended after {SECONDS:.0f} s; see: journalctl --unit {self.name}"
            ) from None
        except OSError as error:
            raise ConfigError(f"{PROGRAM} cannot be run: {os_reason(error)}") from error
        if checked and done.returncode:
            said = " ".join((done.stderr or done.stdout).split()) or f"exit code {done.returncode}"
            raise ConfigError(f"`{' '.join(command)}` failed: {said}; see: journalctl --unit {self.name}")
        return done


def _path() -> str | None:
    """Return the path of the program; None when there is none. Raises ConfigError."""
    found = shutil.which(PROGRAM)
    if found is not None and not Path(found).is_absolute():
        raise ConfigError(
            f"{PROGRAM} is found through a relative entry of PATH, which counts from the current directory, and is not run from "
            "there: remove the entry"
        )
    return found
