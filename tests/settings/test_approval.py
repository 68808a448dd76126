"""Settings of the approval of certificate requests."""

from __future__ import annotations

import pytest

from mooring.errors import ConfigError
from mooring.settings.approval import ApprovalSettings


def test_another_mode_is_refused() -> None:
    with pytest.raises(ConfigError, match='machine-inventory: "maybe" is not one of optional, required'):
        ApprovalSettings.read({"machine_inventory": "maybe"})
