"""Versions and cipher suites of TLS, by the names of kube-apiserver's flags."""

from __future__ import annotations

import re
from typing import Any

import pytest

from mooring.errors import ConfigError
from mooring.settings.serving import ServingSettings, TlsProfile

GCM = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"
CBC = "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA"


def profile(**given: Any) -> TlsProfile:
    return ServingSettings.read(given).tls_profile()


def test_by_default_every_suite_has_forward_secrecy_and_authenticated_encryption() -> None:
    assert not profile().only_tls_1_3
    assert all(re.fullmatch("ECDHE-(ECDSA|RSA)-(.*GCM.*|CHACHA.*)", one) for one in profile().tls_1_2_suites)


@pytest.mark.parametrize(
    ("given", "suites"),
    [
        ((GCM,), ("ECDHE-ECDSA-AES128-GCM-SHA256",)),
        ((f"{CBC},{GCM}", CBC), ("ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-RSA-AES256-SHA")),
        ((GCM, "TLS_AES_128_GCM_SHA256"), ("ECDHE-ECDSA-AES128-GCM-SHA256",)),
        (
            (GCM, "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305", "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256"),
            ("ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-RSA-CHACHA20-POLY1305"),
        ),
    ],
    ids=["one", "those of authenticated encryption first, each once", "one of TLS 1.3", "two names of one suite"],
)
def test_suites_by_the_names_of_go(given: tuple[str, ...], suites: tuple[str, ...]) -> None:
    assert profile(tls_cipher_suites=given) == TlsProfile(suites)


def test_with_tls_1_3_alone_suites_choose_nothing() -> None:
    assert profile(tls_min_version="VersionTLS13", tls_cipher_suites=(CBC,)).only_tls_1_3
    only = profile(tls_cipher_suites=("TLS_AES_128_GCM_SHA256",), disable_http2_serving=True)
    assert only == TlsProfile((), only_tls_1_3=True)


def test_without_http2_any_suite_will_do() -> None:
    assert profile(tls_cipher_suites=(CBC,), disable_http2_serving=True) == TlsProfile(("ECDHE-RSA-AES256-SHA",))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"tls_min_version": "VersionTLS11"},
            "tls-min-version: VersionTLS11 is not served (RFC 8996); give VersionTLS12",
        ),
        ({"tls_min_version": "1.3"}, 'tls-min-version: "1.3" is not one of VersionTLS12, VersionTLS13'),
        (
            {"tls_cipher_suites": ("ECDHE-RSA-AES256-SHA",)},
            'tls-cipher-suites: "ECDHE-RSA-AES256-SHA" is not served; choose',
        ),
        (
            {"tls_cipher_suites": ("TLS_RSA_WITH_RC4_128_SHA",)},
            '"TLS_RSA_WITH_RC4_128_SHA" is not served; choose from TLS_AES',
        ),
        (
            {"tls_cipher_suites": (CBC,)},
            "tls-cipher-suites: HTTP/2 needs TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256 or TLS_ECDHE",
        ),
    ],
)
def test_what_is_not_served_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        profile(**given)
