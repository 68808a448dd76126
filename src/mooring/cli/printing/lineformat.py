"""The one formatter behind every log handler: what a record says becomes lines that nobody can forge.

Rules kept here:
* A record is one line. What it says is cleaned (`plaintext`) and at most `MAX_LINE` characters long: names, messages of other
  servers and header values are text of callers.
* A traceback follows it in lines that begin with `CONTINUED`, each cleaned and bounded alike; of a long one the end is kept, where
  the failure is. No line of it can be taken for a record.
* What looks like a secret is cut out first (law 9), while a key of several lines is still whole.
"""

from __future__ import annotations

import logging

from mooring.cli.printing.plaintext import clean
from mooring.cli.printing.redaction import redacted

MAX_LINE = 4096
"""Characters of one line: longer than any message of ours, and no more than log collectors keep of one."""
MAX_TRACEBACK = 100
"""Lines of a traceback: the depth of a request, twice."""
MAX_READ = 1 << 16
"""Characters of a record that are read at all: searching a body of 3 MiB for secrets would hold everybody up."""
CONTINUED = "  | "


class LineFormatter(logging.Formatter):
    """Formats as `logging.Formatter` does, without the ways in which text of callers could leave its line."""

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
