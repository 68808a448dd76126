"""Configuration of logging for long-running commands.

Rules kept here: each record is one line on stderr, formatted by `lineformat`. On a terminal it has the time of day, and a colour
for warnings and errors. Elsewhere it has an RFC 3339 time, level and logger for a log collector. Records of libraries below
WARNING are dropped unless `LIBRARIES` allows them, because HTTP libraries log headers and bodies with credentials. What the command
prints and logs waits in a queue, so that no reader of it can stop the command (`mooring.queuedoutput`).
"""

from __future__ import annotations

import logging
import sys
import time

import click

from mooring import queuedoutput
from mooring.cli.printing.lineformat import LineFormatter

_COLOURS = {logging.WARNING: "yellow", logging.ERROR: "red", logging.CRITICAL: "red"}
_LEVELS = (logging.INFO, logging.DEBUG)
LIBRARIES = {"httpx2": logging.INFO}
"""Loggers of libraries whose records below WARNING are shown at `-vv`, with the lowest level that holds neither headers nor
bodies. httpx2 logs method, URL and status of each request that this program makes."""


class PlainFormatter(LineFormatter):
    """Formatter of lines such as `2026-01-02T03:04:05Z INFO mooring.plane text`."""

    converter = staticmethod(time.gmtime)

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s", "%Y-%m-%dT%H:%M:%SZ")


class TerminalFormatter(LineFormatter):
    """Formatter of lines such as `03:04:05 text`, coloured from WARNING on."""

    converter = staticmethod(time.localtime)

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(message)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        colour = _COLOURS.get(record.levelno)
        return click.style(text, fg=colour) if colour else text


class LibraryFilter(logging.Filter):
    """Drops records below WARNING of loggers that are neither Mooring's nor in `LIBRARIES`, whatever their level."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno >= logging.WARNING or record.name == "mooring" or record.name.startswith("mooring."):
            return True
        return record.levelno >= LIBRARIES.get(record.name, logging.WARNING)


def configure(verbosity: int = 0) -> None:
    """Log to stderr: INFO; with `-v` also DEBUG; with `-vv` also the requests that libraries send."""
    queuedoutput.install()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(TerminalFormatter() if sys.stderr.isatty() else PlainFormatter())
    handler.addFilter(LibraryFilter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING if verbosity < len(_LEVELS) else logging.INFO)
    logging.getLogger("mooring").setLevel(_LEVELS[min(verbosity, len(_LEVELS) - 1)])
