"""Settings of serving: the certificate that clients see, HTTP/2, and how a server stops."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar

from mooring.errors import ConfigError
from mooring.settings.addresses import parse_hosts
from mooring.settings.declaration import Settings, file_setting, setting
from mooring.settings.tlsprofile import TLS_1_2, TlsProfile, parse_suites, parse_version, tls_profile
from mooring.settings.valuetypes import BOOLEAN, COMMA_SEPARATED, DURATION, TEXT


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingSettings(Settings):
    """Serving certificate, protocols and shutdown."""

    heading: ClassVar[str] = "Serving"

    apiserver_cert_extra_sans: tuple[str, ...] = setting(
        COMMA_SEPARATED,
        default=(),
        meaning="More names and addresses for the serving certificate; repeatable, or with commas.",
        metavar="NAME,...",
        parse=parse_hosts,
    )
    tls_cert_file: str = file_setting(
        "Serving certificate of your own, with its chain behind it; read again when it changes.",
        default_note="one of the cluster's CA",
    )
    tls_private_key_file: str = file_setting("Private key of --tls-cert-file; read again when it changes.")
    root_ca_file: str = file_setting(
        "CAs that verify the serving certificate, published for joining machines, Pods and kubeconfigs; read again when "
        "it changes.",
        default_note="the root of --tls-cert-file, else the cluster's CA",
    )
    disable_http2_serving: bool = setting(
        BOOLEAN, default=False, meaning="Serve HTTP/1.1 only, also to clients that offer HTTP/2."
    )
    tls_min_version: str = setting(
        TEXT,
        default=TLS_1_2,
        meaning="Oldest version of TLS that is served: VersionTLS12 or VersionTLS13.",
        metavar="VERSION",
        parse=parse_version,
    )
    tls_cipher_suites: tuple[str, ...] = setting(
        COMMA_SEPARATED,
        default=(),
        meaning="Cipher suites of TLS 1.2, by Go's names; repeatable, or with commas. Those of TLS 1.3 are always offered.",
        metavar="SUITE,...",
        default_note="ECDHE with AES-GCM and with ChaCha20",
        parse=parse_suites,
    )
    shutdown_delay_duration: timedelta = setting(
        DURATION, default=timedelta(0), meaning="Time to go on serving, not ready, after a signal to stop."
    )

    def __post_init__(self) -> None:
        """Raise ConfigError for a certificate without a key, a key without a certificate, and suites that HTTP/2 cannot use."""
        if bool(self.tls_cert_file) != bool(self.tls_private_key_file):
            missing, given = ("private-key", "cert") if self.tls_cert_file else ("cert", "private-key")
            raise ConfigError(f"tls-{missing}-file: it is needed with tls-{given}-file")
        self.tls_profile()

    def tls_profile(self) -> TlsProfile:
        """Return the versions and suites to offer. Raises ConfigError for suites that HTTP/2 cannot use."""
        return tls_profile(self.tls_min_version, self.tls_cipher_suites, http2=not self.disable_http2_serving)
