"""Formatter of log records: one line for each record, so that no logged text can forge another record.

Rules kept here:
* A record is one line, made printable (`plaintext`) and at most `MAX_LINE` characters long: names, messages of other servers and
  header values are text of clients.
* The lines of a traceback begin with `CONTINUED` and are cleaned and bounded in the same way. A long traceback keeps its end.
* Text that looks like a secret is removed first (law 9), while a key of several lines is still whole.
"""

from __future__ import annotations

import logging

from mooring.cli.printing.plaintext import clean
from mooring.cli.printing.redaction import redacted

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
