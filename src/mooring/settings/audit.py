"""Settings of the audit log."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from mooring.errors import ConfigError
from mooring.settings.checks import integer_within
from mooring.settings.declaration import Settings, file_setting, setting
from mooring.settings.valuetypes import INTEGER, OPTIONAL_TEXT, TEXT

MAX_MIB = 1 << 20
MAX_FILES = 1000
"""Rotated files are numbered, and each rotation renames them all."""
MAX_DAYS = 36_500


class AuditMode(StrEnum):
    """When records are written, under kube-apiserver's names."""

    BATCH = "batch"
    """Beside the requests, which do not wait."""
    BLOCKING = "blocking"
    """Before the response is sent. A record that cannot be written does not keep it back."""
    BLOCKING_STRICT = "blocking-strict"
    """Before the response, like `BLOCKING`. A request whose arrival cannot be recorded is refused."""


def _mode(text: str, key: str) -> AuditMode:
    try:
        return AuditMode(text)
    except ValueError:
        raise ConfigError(f'{key}: "{text}" is not one of {", ".join(AuditMode)}') from None


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
    audit_policy_file: str = file_setting(
        "Audit policy (audit.k8s.io/v1): the level at which each request is logged.",
        default_note="every request, level Metadata",
    )
    audit_log_mode: AuditMode = setting(
        TEXT,
        default=AuditMode.BATCH.value,
        meaning="When records are written: batch, beside the requests; blocking, before each response; blocking-strict, the same, "
        "and a request that cannot be recorded is refused.",
        metavar="MODE",
        parse=_mode,
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
