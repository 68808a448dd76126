"""Settings of the audit log."""

from __future__ import annotations

import pytest

from mooring.errors import ConfigError
from mooring.settings.serving import AuditMode, AuditSettings


@pytest.mark.parametrize("mode", AuditMode)
def test_modes_have_the_names_of_kube_apiserver(mode: AuditMode) -> None:
    assert AuditSettings.read({"audit_log_mode": mode.value}).audit_log_mode is mode


def test_another_mode_is_refused() -> None:
    with pytest.raises(ConfigError, match='audit-log-mode: "maybe" is not one of batch, blocking, blocking-strict'):
        AuditSettings.read({"audit_log_mode": "maybe"})
