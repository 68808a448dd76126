"""Logging of long-running commands.

Rules kept here: one line a record on stderr. A terminal gets the time of day and colour for what needs attention; anything else
gets RFC 3339, level and logger, ready for a log collector. No line holds a secret: what looks like one is cut out (law 9).
"""

from __future__ import annotations

import logging
import sys
import time

import click

from mooring.cli.redaction import redacted

_COLOURS = {logging.WARNING: "yellow", logging.ERROR: "red", logging.CRITICAL: "red"}
_LEVELS = (logging.INFO, logging.DEBUG)


class PlainFormatter(logging.Formatter):
    """`2026-01-02T03:04:05Z INFO mooring.plane text`."""

    converter = staticmethod(time.gmtime)

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s", "%Y-%m-%dT%H:%M:%SZ")

    def format(self, record: logging.LogRecord) -> str:
        return redacted(super().format(record))


class TerminalFormatter(PlainFormatter):
    """`03:04:05 text`, coloured when it is a warning or worse."""

    converter = staticmethod(time.localtime)

    def __init__(self) -> None:
        logging.Formatter.__init__(self, "%(asctime)s %(message)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        colour = _COLOURS.get(record.levelno)
        return click.style(text, fg=colour) if colour else text


def configure(verbosity: int = 0) -> None:
    """Log to stderr: what an operator wants to know; with `-v` what a developer does, too."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(TerminalFormatter() if sys.stderr.isatty() else PlainFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING if verbosity < len(_LEVELS) else logging.DEBUG)
    logging.getLogger("httpcore2").setLevel(
        logging.INFO
    )  # below, it writes headers of answers: Keystone's hold a token
    logging.getLogger("mooring").setLevel(_LEVELS[min(verbosity, len(_LEVELS) - 1)])
