"""Settings of encryption at rest."""

from __future__ import annotations

import pytest

from mooring.errors import ConfigError
from mooring.settings.storage import EncryptionSettings


def test_a_file_may_be_followed() -> None:
    values = {"encryption_provider_config": "f", "encryption_provider_config_automatic_reload": True}
    assert EncryptionSettings.read(values).encryption_provider_config_automatic_reload


def test_there_is_no_reload_without_a_file() -> None:
    with pytest.raises(ConfigError, match=r"^encryption-provider-config-automatic-reload: it needs"):
        EncryptionSettings.read({"encryption_provider_config_automatic_reload": True})
