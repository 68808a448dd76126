"""Audit of one server process: the log, and what decides on its records.

It is built before the registry, because opening the store may write objects already.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mooring.clock import Clock
from mooring.plane.configuration import ServerConfig
from mooring.server.audit.auditevent import read_policy
from mooring.server.audit.auditor import Auditor
from mooring.server.audit.logfile import AuditLog
from mooring.server.hostshare.share import HostShare
from mooring.settings.network import NetworkSettings
from mooring.settings.serving import AuditSettings


@dataclass(frozen=True, slots=True)
class Audit:
    """The audit log of a process, and the auditor that writes to it."""

    log: AuditLog
    auditor: Auditor


def build_audit(config: ServerConfig, clock: Clock, entropy: Callable[[int], bytes], share: HostShare) -> Audit:
    """Return the audit of a server with this configuration; the log is not open yet. Raises ConfigError for a bad policy."""
    settings = config[AuditSettings]
    log = AuditLog(
        settings.file(config.data_dir),
        suffix=f"-{config[NetworkSettings].secure_port}",
        max_bytes=settings.audit_log_maxsize << 20,
        keep=settings.audit_log_maxbackup,
        max_age=settings.audit_log_maxage,
        mode=settings.audit_log_mode,
        now=clock.now,
        share=share,
    )
    return Audit(log, Auditor(log, read_policy(settings.audit_policy_file), clock, entropy))
