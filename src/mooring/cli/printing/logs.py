"""Logging of long-running commands.

Rules kept here: one line a record on stderr, cleaned by `lineformat`. A terminal gets the time of day and colour for what needs
attention; anything else gets RFC 3339, level and logger, ready for a log collector.
Libraries log warnings, and what `LIBRARIES` allows: below that, HTTP libraries log headers and bodies, credentials among them.
"""

from __future__ import annotations

import logging
import sys
import time

import click

from mooring.cli.printing.lineformat import LineFormatter

_COLOURS = {logging.WARNING: "yellow", logging.ERROR: "red", logging.CRITICAL: "red"}
_LEVELS = (logging.INFO, logging.DEBUG)
LIBRARIES = {"httpx2": logging.INFO}
"""Loggers of libraries whose records below WARNING are shown at `-vv`, with the lowest level that holds neither headers nor
bodies. httpx2 logs method, URL and status of each request that this program makes."""


class PlainFormatter(LineFormatter):
    """`2026-01-02T03:04:05Z INFO mooring.plane text`."""

    converter = staticmethod(time.gmtime)

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s", "%Y-%m-%dT%H:%M:%SZ")


class TerminalFormatter(LineFormatter):
    """`03:04:05 text`, coloured when it is a warning or worse."""

    converter = staticmethod(time.localtime)

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(message)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        colour = _COLOURS.get(record.levelno)
        return click.style(text, fg=colour) if colour else text


class LibraryFilter(logging.Filter):
    """Drops records below WARNING of every logger that is neither Mooring's nor in `LIBRARIES`, whatever level it has set."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno >= logging.WARNING or record.name == "mooring" or record.name.startswith("mooring."):
            return True
        return record.levelno >= LIBRARIES.get(record.name, logging.WARNING)


def configure(verbosity: int = 0) -> None:
    """Log to stderr: what an operator wants to know; with `-v` what a developer does; with `-vv` also requests to others."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(TerminalFormatter() if sys.stderr.isatty() else PlainFormatter())
    handler.addFilter(LibraryFilter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING if verbosity < len(_LEVELS) else logging.INFO)
    logging.getLogger("mooring").setLevel(_LEVELS[min(verbosity, len(_LEVELS) - 1)])
