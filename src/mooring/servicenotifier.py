"""The service manager that started this process, such as systemd: how far the process has come (sd_notify(3)).

Rules kept here:
* A process without NOTIFY_SOCKET says nothing, and one whose WATCHDOG_PID is another process has no watchdog.
* The variables are removed once they are read: children, such as hooks and plugins, do not speak for this process.
* A service manager that does not read costs SEND_SECONDS at most, and a sign of life nothing. No message ends the process.
* READY=1 is not lost: a service manager that did not read, because it read its units again, gets it when it does.
"""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from typing import NoReturn

from mooring.clock import Clock

SEND_SECONDS = 1.0
"""Time for one message: it waits only while the service manager reads those of others."""
SIGNS_IN_WATCHDOG = 3
"""Signs of life in the time of the watchdog: one that is late, or lost, ends no process."""
REPEAT_SECONDS = 1.0
"""Time after which a READY=1 that was not taken is sent again, at most."""
UNWATCHED_SECONDS = 3600.0
_VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


class ServiceNotifier:
    """The other end of NOTIFY_SOCKET; without an address every method does nothing.

    `pause` is the number of seconds between two signs of life; None without a watchdog.
    """

    def __init__(self, address: str = "", pause: float | None = None) -> None:
        self._address = address.replace("@", "\0", 1) if address.startswith("@") else address
        self.pause = pause if address else None
        self._ready = ""
        self._unread = ""
        """The READY=1 that the service manager has not taken."""

    @classmethod
    def of_environment(cls) -> ServiceNotifier:
        """Return the one that the variables of this process name, and remove the variables."""
        address, watchdog, process = (os.environ.pop(name, "") for name in _VARIABLES)
        is_watched = watchdog.isdecimal() and int(watchdog) > 0 and process in ("", str(os.getpid()))
        return cls(address, int(watchdog) / 1e6 / SIGNS_IN_WATCHDOG if is_watched else None)

    def ready(self, status: str = "") -> None:
        """Say that the process does its work, or does it again. `status` is one line of text; by default it is that of before."""
        self._ready = status or self._ready
        self._unread = f"READY=1\n{_status(self._ready)}"
        self._repeat(SEND_SECONDS)

    def status(self, status: str) -> None:
        """Say what the process does now, in one line of text."""
        self._send(_status(status), SEND_SECONDS)

    def reloading(self, status: str) -> None:
        """Say that the configuration is read again; `ready` ends it."""
        self._unread = ""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}\n{_status(status)}", SEND_SECONDS)

    def stopping(self) -> None:
        """Say that the process is on its way to its end."""
        self._unread = ""
        self._send(f"STOPPING=1\n{_status('stopping')}", SEND_SECONDS)

    def alive(self) -> None:
        """Give a sign of life, after the READY=1 that was not taken."""
        self._repeat(0.0)
        if self.pause is not None:
            self._send("WATCHDOG=1", 0.0)

    async def keep_alive(self, clock: Clock) -> NoReturn:
        """Give signs of life until cancelled, for as long as the event loop runs."""
        while True:
            self.alive()
            pause = UNWATCHED_SECONDS if self.pause is None else self.pause
            await clock.sleep(min(pause, REPEAT_SECONDS) if self._unread else pause)

    def _repeat(self, seconds: float) -> None:
        if self._unread and self._send(self._unread, seconds):
            self._unread = ""

    def _send(self, message: str, seconds: float) -> bool:
        """Send a message. False: the service manager has not read those before it."""
        if not self._address:
            return True
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out:
            out.settimeout(seconds)
            try:
                out.sendto(message.encode(errors="replace"), self._address)
            except (BlockingIOError, TimeoutError):
                return False
        return True


def _status(text: str) -> str:
    return f"STATUS={' '.join(text.split())}"
