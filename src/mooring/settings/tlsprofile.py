"""Versions and cipher suites of TLS that a server offers, by the names of kube-apiserver's flags.

Rules kept here:
* Names are Go's, those of `--tls-min-version` and `--tls-cipher-suites`. Each stands beside OpenSSL's name.
* TLS 1.0 and 1.1 are not served (RFC 8996), and neither are RC4 (RFC 7465) and 3DES, which OpenSSL does not have by default.
* The suites of TLS 1.3 cannot be chosen, as in Go: they are accepted, and always offered.
* HTTP/2 over TLS 1.2 needs a suite that every client has (RFC 9113, 9.2.2). As kube-apiserver does, a list without one is refused,
  and a connection with a suite that HTTP/2 prohibits (appendix A) is ended.
"""

from __future__ import annotations

from dataclasses import dataclass

from mooring.errors import ConfigError

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
    if http2 and _HTTP_2_REQUIRED.isdisjoint(suites):
        raise ConfigError(
            f"tls-cipher-suites: HTTP/2 needs {' or '.join(sorted(_HTTP_2_REQUIRED))} (RFC 9113); add one, or give "
            f"--tls-min-version={TLS_1_3} or --disable-http2-serving"
        )
    chosen = tuple(dict.fromkeys(SUITES[name] for name in SUITES if name in suites))
    return TlsProfile(chosen, only_tls_1_3=not chosen)
