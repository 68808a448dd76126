"""Logging of long-running commands: one line for each record, so that no logged text can forge another one."""

from __future__ import annotations

import json
import logging
import sys
import time

import click

from mooring import queuedoutput
from mooring.cli.options.flags import options_of
from mooring.cli.printing import clean, redacted

# Formatter of log records: one line for each record, so that no logged text can forge another record.
#
# Rules kept here:
# * A record is one line, made printable (`plaintext`) and at most `MAX_LINE` characters long: names, messages of other servers and
#   header values are text of clients.
# * The lines of a traceback begin with `CONTINUED` and are cleaned and bounded in the same way. A long traceback keeps its end.
# * Text that looks like a secret is removed first (law 9), while a key of several lines is still whole.

MAX_LINE = 4096
"""Characters of one line: longer than any message of this program, and no more than log collectors keep."""
MAX_TRACEBACK = 100
"""Lines of a traceback: twice the depth of a request."""
MAX_READ = 1 << 16
"""Characters of a record that are read: searching 3 MiB for secrets would block the event loop."""
CONTINUED = "  | "


class LineFormatter(logging.Formatter):
    """`logging.Formatter` that keeps each record on one line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's line, and the lines of its traceback."""
        record.message = clean(redacted(record.getMessage()[:MAX_READ]), MAX_LINE)
        if self.usesTime():
            record.asctime = self.formatTime(record, self.datefmt)
        return "\n".join((self.formatMessage(record), *self._traceback(record)))

    def _traceback(self, record: logging.LogRecord) -> list[str]:
        text = self.formatException(record.exc_info) if record.exc_info else record.exc_text or ""
        if record.stack_info:
            text = f"{text}\n{record.stack_info}" if text else record.stack_info
        if not text:
            return []
        lines = redacted(text[-MAX_READ:]).split("\n")
        left_out = len(lines) - MAX_TRACEBACK
        kept = lines if left_out <= 0 else [f"({left_out} lines left out)", *lines[-MAX_TRACEBACK:]]
        return [CONTINUED + clean(line, MAX_LINE) for line in kept]


# Configuration of logging for long-running commands.
#
# Rules kept here: each record is one line on stderr, formatted by `lineformat`. On a terminal it has the time of day, and a
# colour for warnings and errors. Elsewhere it has an RFC 3339 time, level and logger for a log collector, in JSON on demand.
# Records of libraries below WARNING are dropped unless `LIBRARIES` allows them, because HTTP libraries log headers and bodies with
# credentials. What the command prints and logs waits in a queue, so that no reader of it can stop the command
# (`mooring.queuedoutput`).

_COLOURS = {logging.WARNING: "yellow", logging.ERROR: "red", logging.CRITICAL: "red"}
_LEVELS = (logging.INFO, logging.DEBUG)
_TIME = "%Y-%m-%dT%H:%M:%SZ"
LIBRARIES = {"httpx2": logging.INFO}
"""Loggers of libraries whose records below WARNING are shown at `-vv`, with the lowest level that holds neither headers nor
bodies. httpx2 logs method, URL and status of each request that this program makes."""


class PlainFormatter(LineFormatter):
    """Formatter of lines such as `2026-01-02T03:04:05Z INFO mooring.controlplane text`."""

    converter = staticmethod(time.gmtime)

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s", _TIME)


class TerminalFormatter(LineFormatter):
    """Formatter of lines such as `03:04:05 text`, coloured from WARNING on."""

    converter = staticmethod(time.localtime)

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(message)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        colour = _COLOURS.get(record.levelno)
        return click.style(text, fg=colour) if colour else text


class JsonFormatter(LineFormatter):
    """Formatter of JSON objects, one on each line: `time`, `level`, `logger`, `message` and, where there is one, `traceback`."""

    converter = staticmethod(time.gmtime)

    def format(self, record: logging.LogRecord) -> str:
        document = {
            "time": self.formatTime(record, _TIME),
            "level": record.levelname,
            "logger": record.name,
            "message": clean(redacted(record.getMessage()[:MAX_READ]), MAX_LINE),
        }
        traceback = [line.removeprefix(CONTINUED) for line in self._traceback(record)]
        return json.dumps(document | ({"traceback": traceback} if traceback else {}), ensure_ascii=False)


class LibraryFilter(logging.Filter):
    """Drops records below WARNING of loggers that are neither Mooring's nor in `LIBRARIES`, whatever their level."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno >= logging.WARNING or record.name == "mooring" or record.name.startswith("mooring."):
            return True
        return record.levelno >= LIBRARIES.get(record.name, logging.WARNING)


def is_json() -> bool:
    """Return True when each record is a JSON object."""
    return any(isinstance(one.formatter, JsonFormatter) for one in logging.getLogger().handlers)


TEXT, JSON = "text", "json"
log_options = options_of(
    click.option("-v", "--verbose", count=True, help="Log more; twice for the most."),
    click.option(
        "--log-format",
        type=click.Choice([TEXT, JSON]),
        default=TEXT,
        show_default=True,
        envvar="MOORING_LOG_FORMAT",
        show_envvar=True,
        help="Form of each record of the log: a line of text, or a JSON object.",
    ),
)
"""Flags of the log of a command that runs for long: the arguments of `configure`."""


def configure(verbose: int = 0, log_format: str = TEXT) -> None:
    """Log to stderr: INFO; with `-v` also DEBUG; with `-vv` also the requests that libraries send."""
    queuedoutput.install()
    handler = logging.StreamHandler(sys.stderr)
    plain = TerminalFormatter() if sys.stderr.isatty() else PlainFormatter()
    handler.setFormatter(JsonFormatter() if log_format == JSON else plain)
    handler.addFilter(LibraryFilter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING if verbose < len(_LEVELS) else logging.INFO)
    logging.getLogger("mooring").setLevel(_LEVELS[min(verbose, len(_LEVELS) - 1)])
