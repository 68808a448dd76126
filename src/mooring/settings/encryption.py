"""Settings of encryption at rest, by kube-apiserver's names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mooring.errors import ConfigError
from mooring.settings.declaration import Settings, file_setting, setting
from mooring.settings.valuetypes import BOOLEAN


@dataclass(frozen=True, slots=True, kw_only=True)
class EncryptionSettings(Settings):
    """File of the keys that encrypt stored objects."""

    heading: ClassVar[str] = "Encryption at rest"

    encryption_provider_config: str = file_setting(
        "EncryptionConfiguration (apiserver.config.k8s.io/v1): resources that are encrypted in the store, and keys.",
        default_note="objects are stored unencrypted",
    )
    encryption_provider_config_automatic_reload: bool = setting(
        BOOLEAN,
        default=False,
        meaning="Use --encryption-provider-config again when it changes.",
    )

    def __post_init__(self) -> None:
        """Raise ConfigError for a reload of no file, as kube-apiserver does."""
        if self.encryption_provider_config_automatic_reload and not self.encryption_provider_config:
            raise ConfigError(
                "encryption-provider-config-automatic-reload: it needs encryption-provider-config, the file to reload"
            )
