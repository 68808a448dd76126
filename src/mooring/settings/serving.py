"""Settings of serving: TLS and the certificate, HTTP/2, workers, flow control, the audit log, authorization and admission."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import ClassVar

from mooring.errors import ConfigError
from mooring.settings.addresses import parse_hosts
from mooring.settings.declaration import (
    BOOLEAN,
    COMMA_SEPARATED,
    COUNT,
    DURATION,
    INTEGER,
    NUMBER,
    OPTIONAL_TEXT,
    TEXT,
    Settings,
    file_setting,
    integer_within,
    setting,
    split_commas,
)

# Versions and cipher suites of TLS that a server offers, by the names of kube-apiserver's flags.
#
# Rules kept here:
# * Names are Go's, those of `--tls-min-version` and `--tls-cipher-suites`. Each stands beside OpenSSL's name.
# * TLS 1.0 and 1.1 are not served (RFC 8996), and neither are RC4 (RFC 7465) and 3DES, which OpenSSL does not have by default.
# * The suites of TLS 1.3 cannot be chosen, as in Go: they are accepted, and always offered.
# * A connection with a suite that HTTP/2 prohibits (RFC 9113, appendix A) is ended.

TLS_1_2, TLS_1_3 = "VersionTLS12", "VersionTLS13"
_TOO_OLD = ("VersionTLS10", "VersionTLS11")

_TLS_1_3_SUITES = ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256")
_AUTHENTICATED = {
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
}
"""Suites with forward secrecy and authenticated encryption: those that are offered by default."""
_BY_REQUEST = {
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256": "ECDHE-ECDSA-AES128-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256": "ECDHE-RSA-AES128-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA": "ECDHE-ECDSA-AES128-SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA": "ECDHE-RSA-AES128-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA": "ECDHE-ECDSA-AES256-SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA": "ECDHE-RSA-AES256-SHA",
    "TLS_RSA_WITH_AES_128_GCM_SHA256": "AES128-GCM-SHA256",
    "TLS_RSA_WITH_AES_256_GCM_SHA384": "AES256-GCM-SHA384",
    "TLS_RSA_WITH_AES_128_CBC_SHA256": "AES128-SHA256",
    "TLS_RSA_WITH_AES_128_CBC_SHA": "AES128-SHA",
    "TLS_RSA_WITH_AES_256_CBC_SHA": "AES256-SHA",
}
SUITES = {**_AUTHENTICATED, **_BY_REQUEST}
"""OpenSSL's name of each suite of TLS 1.2 that may be chosen, by Go's name."""
HTTP_2_SUITES = frozenset(_AUTHENTICATED.values())
"""OpenSSL's names of the suites of TLS 1.2 over which HTTP/2 may be spoken."""
_HTTP_2_REQUIRED = frozenset(tuple(_AUTHENTICATED)[:2])


@dataclass(frozen=True, slots=True)
class TlsProfile:
    """TLS versions and cipher suites that a server offers to its clients."""

    tls_1_2_suites: tuple[str, ...] = tuple(_AUTHENTICATED.values())
    """OpenSSL's names, those of authenticated encryption first."""
    only_tls_1_3: bool = False


def parse_version(text: str, key: str) -> str:
    """Return the name of a version. Raises ConfigError."""
    if text in _TOO_OLD:
        raise ConfigError(f"{key}: {text} is not served (RFC 8996); give {TLS_1_2} or {TLS_1_3}")
    if text not in (TLS_1_2, TLS_1_3):
        raise ConfigError(f'{key}: "{text}" is not one of {TLS_1_2}, {TLS_1_3}')
    return text


def parse_suites(names: tuple[str, ...], key: str) -> tuple[str, ...]:
    """Return Go's names of suites. Raises ConfigError for one that is not served."""
    for name in names:
        if name not in SUITES and name not in _TLS_1_3_SUITES:
            raise ConfigError(f'{key}: "{name}" is not served; choose from {", ".join((*_TLS_1_3_SUITES, *SUITES))}')
    return names


def tls_profile(version: str, suites: tuple[str, ...], *, http2: bool) -> TlsProfile:
    """Return the profile of two flags; without suites that of the default. Raises ConfigError."""
    if version == TLS_1_3:
        return TlsProfile(only_tls_1_3=True)
    if not suites:
        return TlsProfile()
    # HTTP/2 over TLS 1.2 needs a suite that every client has (RFC 9113, 9.2.2). kube-apiserver refuses such a list,
    # too.
    if http2 and _HTTP_2_REQUIRED.isdisjoint(suites):
        raise ConfigError(
            f"tls-cipher-suites: HTTP/2 needs {' or '.join(sorted(_HTTP_2_REQUIRED))} (RFC 9113); add one, or give "
            f"--tls-min-version={TLS_1_3} or --disable-http2-serving"
        )
    # In the order of SUITES, those of authenticated encryption first, whatever the order of the flag.
    openssl_names = tuple(dict.fromkeys(SUITES[name] for name in SUITES if name in suites))
    # A list with suites of TLS 1.3 alone leaves none for TLS 1.2.
    return TlsProfile(openssl_names, only_tls_1_3=not openssl_names)


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
            missing, present = ("private-key", "cert") if self.tls_cert_file else ("cert", "private-key")
            raise ConfigError(f"tls-{missing}-file: it is needed with tls-{present}-file")
        # Made here, so that a list that cannot be served is an error of the settings.
        self.tls_profile()

    def tls_profile(self) -> TlsProfile:
        """Return the versions and suites to offer. Raises ConfigError for suites that HTTP/2 cannot use."""
        return tls_profile(self.tls_min_version, self.tls_cipher_suites, http2=not self.disable_http2_serving)


AUTO = 0
"""One worker for each CPU that this process may use."""
MAX_WORKERS = 32
"""Each worker holds every object in memory, and writes go through one file or one etcd: more gain nothing."""


def _parse_count(text: str, key: str) -> int:
    if text == "auto":
        return AUTO
    if not (text.isascii() and text.isdecimal() and 1 <= int(text[:4]) <= MAX_WORKERS):
        raise ConfigError(f"{key}: give a number from 1 to {MAX_WORKERS}, or auto")
    return int(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersSettings(Settings):
    """Number of processes that serve one port."""

    heading: ClassVar[str] = "Workers"

    workers: int = setting(
        COUNT,
        default="1",
        meaning="Processes that serve the port together: a number, or auto for one on each CPU that this process may use.",
        metavar="N",
        parse=_parse_count,
        everyday=True,
    )


def _parse_rate(value: float, key: str) -> float:
    if not 0 <= value < math.inf:
        raise ConfigError(f"{key}: give 0 (no fixed rate) or a positive number")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowControlSettings(Settings):
    """Rates of requests."""

    heading: ClassVar[str] = "Flow control"

    anonymous_requests_per_second: float = setting(
        NUMBER,
        default=0.0,
        meaning="Rate limit of anonymous requests, per second; 0: only the limits of all requests apply.",
        metavar="RATE",
        parse=_parse_rate,
    )


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


def _parse_modes(text: str, key: str) -> tuple[str, ...]:
    return split_commas((text,))


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorizationSettings(Settings):
    """Authorizers. `mooring.authz.table.build` checks their names."""

    heading: ClassVar[str] = "Authorization"

    authorization_mode: tuple[str, ...] = setting(
        TEXT,
        default="Node,RBAC",
        meaning="Authorizers, in order, with commas.",
        metavar="MODE,...",
        parse=_parse_modes,
    )

    @property
    def always_allow(self) -> bool:
        """Every request is allowed, so that anonymous requests must be refused."""
        return "AlwaysAllow" in self.authorization_mode


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionSettings(Settings):
    """Admission plugins. `mooring.registry.admission.table.build` checks their names."""

    heading: ClassVar[str] = "Admission"

    disable_admission_plugins: tuple[str, ...] = setting(
        COMMA_SEPARATED,
        default=(),
        meaning="Admission plugins to disable; repeatable, or with commas.",
        metavar="NAME,...",
    )
