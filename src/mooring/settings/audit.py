"""Settings of the audit log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mooring.settings.checks import integer_within
from mooring.settings.declaration import Settings, setting
from mooring.settings.kinds import INTEGER, OPTIONAL_TEXT, TEXT

MAX_MIB = 1 << 20
MAX_FILES = 1000
"""Rotated files are numbered, and each rotation renames them all."""
MAX_DAYS = 36_500


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSettings(Settings):
    """Audit log: its file, its rotation and its policy."""

    heading: ClassVar[str] = "Audit log"

    audit_log_path: str | None = setting(
        OPTIONAL_TEXT,
        default=None,
        meaning="File of the audit log, one record for each request, rotated by size; - is standard output, empty for none.",
        default_note="audit.log in the data directory",
        metavar="PATH",
    )
    audit_policy_file: str = setting(
        TEXT,
        default="",
        meaning="Audit policy (audit.k8s.io/v1): the level at which each request is logged.",
        default_note="every request, level Metadata",
        metavar="FILE",
    )
    audit_log_maxsize: int = setting(
        INTEGER,
        default=100,
        meaning="Size in MiB at which the audit log is rotated.",
        parse=integer_within(1, MAX_MIB),
    )
    audit_log_maxbackup: int = setting(
        INTEGER, default=5, meaning="Number of rotated audit logs that are kept.", parse=integer_within(1, MAX_FILES)
    )
    audit_log_maxage: int = setting(
        INTEGER,
        default=0,
        meaning="Days for which a rotated audit log is kept; 0: no limit.",
        parse=integer_within(0, MAX_DAYS),
    )

    def file(self, data_dir: str) -> str:
        """Return the file to write, `-` for standard output, "" for none."""
        return f"{data_dir.rstrip('/')}/audit.log" if self.audit_log_path is None else self.audit_log_path
