"""Units on this machine: installs, starts and removes them by `systemctl`.

Rules kept here:
* A unit that this program did not write is never replaced or removed: its first line says who wrote it. Changes belong into a
  drop-in (`systemctl edit`), which stays.
* What can fail for good is asked before anything is written: whether systemd runs, and whether the unit is another's.
* Where systemd does not run the machine, as in an image or a chroot, nothing is stopped or started: there is no service to stop.
* Everything may be done again: what is there already stays.
* A `systemctl` that is found through a relative entry of PATH, such as in the current directory, is not run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cached_property
from pathlib import Path

from mooring.client.files import MAX_READ, os_reason, read_limited, write_atomic
from mooring.errors import ConfigError

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
