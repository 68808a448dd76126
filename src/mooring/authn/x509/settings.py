"""Settings of client certificates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mooring.settings.declaration import Settings, setting
from mooring.settings.kinds import TEXT


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCertificateSettings(Settings):
    """Client certificates."""

    heading: ClassVar[str] = "Client certificates"

    client_ca_file: str = setting(
        TEXT,
        default="",
        meaning="Certificates of the CAs that client certificates are verified under; read again when it changes.",
        default_note="the cluster's CA",
        metavar="FILE",
    )
