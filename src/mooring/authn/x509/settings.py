"""Settings of client certificates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mooring.errors import ConfigError
from mooring.settings.declaration import Settings, file_setting, setting
from mooring.settings.valuetypes import BOOLEAN, COMMA_SEPARATED


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCertificateSettings(Settings):
    """Client certificates."""

    heading: ClassVar[str] = "Client certificates"

    client_ca_file: str = file_setting(
        "Certificates of the CAs that client certificates are verified under; read again when it changes.",
        default_note="the cluster's CA",
    )
    client_crl_file: tuple[str, ...] = setting(
        COMMA_SEPARATED,
        default=(),
        meaning="CRLs, in PEM or DER, of the CAs that verify client certificates; read again when a file changes.",
        metavar="FILE",
    )
    client_crl_strict: bool = setting(
        BOOLEAN,
        default=False,
        meaning="Accept no client certificate of another CA than the cluster's while there is no current CRL of it.",
    )

    def __post_init__(self) -> None:
        if self.client_crl_strict and not self.client_crl_file:
            raise ConfigError("client-crl-strict: it needs client-crl-file")
