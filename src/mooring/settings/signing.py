"""Settings of the signers of CertificateSigningRequests: their CAs, the lifetime of certificates, and the policy file.

Rules kept here:
* The names are kube-controller-manager's. One pair of files for all built-in signers and pairs for single signers exclude each
  other, with the same error (docs/protocol/certificate-signing-requests.md#signing).
* A built-in signer without files of its own has the default CA of the program: that of the cluster, or none.
* A key file may be a PKCS#11 URI (RFC 7512). The URI names where the PIN is read, and never contains it.
* The signers of the supervisor have the CA of their counterparts in Kubernetes (`mooring.pki.x509.signers.COUNTERPARTS`).
* `--signer` adds a signer of the operator's own. Names below `kubernetes.io` and `k8s.io` are reserved for Kubernetes, those below
  `mooring.io` for the supervisor.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType
from typing import ClassVar

from mooring.errors import ConfigError
from mooring.settings.addresses import parse_suffixes
from mooring.settings.declaration import (
    COMMA_SEPARATED,
    DURATION,
    TEXT,
    TEXTS,
    Settings,
    duration_within,
    file_setting,
    one_of_words,
    setting,
)

PKCS11 = "pkcs11:"
"""Scheme of a key that a token holds."""
MAX_OWN_SIGNERS = 64
"""Each has a pair of files that is looked at every second."""
SIGNING_DURATION = timedelta(hours=8760)
"""kube-controller-manager's default."""
SHORTEST = timedelta(seconds=10)
"""A renewal is a request, an approval and a signature. A shorter certificate ends while a busy server replaces it."""
SHORT = timedelta(minutes=10)
"""The lifetime that Kubernetes gives at least to requests for a short one. Below about two minutes a kubelet renews without a
pause, because it counts from the begin, which is set five minutes into the past."""
LONGEST = timedelta(days=36_500)
"""A hundred years: longer ones overflow dates in other programs, and no CA lives so long."""

BUILT_IN: Mapping[str, str] = MappingProxyType(
    {
        "kubernetes.io/kube-apiserver-client": "kube-apiserver-client",
        "kubernetes.io/kube-apiserver-client-kubelet": "kubelet-client",
        "kubernetes.io/kubelet-serving": "kubelet-serving",
        "kubernetes.io/legacy-unknown": "legacy-unknown",
    }
)
"""Names of the built-in signers, each with the part of its flags after `cluster-signing-`."""

_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_SIGNER_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})+/{_LABEL}(?:\.{_LABEL})*", re.ASCII)
_RESERVED = ("kubernetes.io", "k8s.io")
_SUPERVISOR = "mooring.io"
MAX_NAME = 571
"""Characters of a signer name: a domain of 253, a path of the same, and the labels between, as the API server bounds it."""


@dataclass(frozen=True, slots=True)
class SigningFiles:
    """Certificate and key of a signer. The keys are the settings to name in errors."""

    certificate_key: str
    certificate: str
    key_key: str
    key: str
    """File name, or a PKCS#11 URI."""

    @property
    def in_token(self) -> bool:
        """True when a token holds the key."""
        return self.key.startswith(PKCS11)


def _without_pin(text: str, key: str) -> str:
    """Refuse a URI that contains its PIN."""
    # Every user of the machine can read a command line.
    if text.startswith(PKCS11) and "pin-value" in text:
        raise ConfigError(f"{key}: the URI must not contain the PIN; use pin-source=file:PATH or pin-source=env:NAME")
    return text


def _own_signers(values: tuple[str, ...], key: str) -> tuple[tuple[str, SigningFiles], ...]:
    """Return each name with its files. Raises ConfigError."""
    if len(values) > MAX_OWN_SIGNERS:
        raise ConfigError(f"{key}: more than {MAX_OWN_SIGNERS} signers")
    found: dict[str, SigningFiles] = {}
    for value in values:
        name, _, files = value.partition("=")
        certificate, _, private = files.partition(",")
        if not certificate or not private:
            raise ConfigError(f"{key}: give NAME=CERTIFICATE-FILE,KEY-FILE")
        if not _SIGNER_NAME.fullmatch(name) or len(name) > MAX_NAME:
            raise ConfigError(
                f'{key}: "{name[:100]}" is no name of a signer; give DOMAIN/PATH, such as example.com/web'
            )
        domain = name.partition("/")[0]
        if any(domain == reserved or domain.endswith(f".{reserved}") for reserved in _RESERVED):
            raise ConfigError(
                f"{key}: {name}: names below {domain} are reserved for Kubernetes; the built-in signers have "
                "cluster-signing-*-cert-file and -key-file"
            )
        if domain == _SUPERVISOR or domain.endswith(f".{_SUPERVISOR}"):
            raise ConfigError(
                f"{key}: {name}: names below {_SUPERVISOR} are reserved for the supervisor; its signers have the CAs of those of "
                "kubernetes.io (cluster-signing-*-cert-file)"
            )
        if name in found:
            raise ConfigError(f"{key}: {name} is given twice")
        found[name] = SigningFiles(key, certificate, key, _without_pin(private, key))
    return tuple(found.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class SigningSettings(Settings):
    """Signers of CertificateSigningRequests."""

    heading: ClassVar[str] = "Signers"

    cluster_signing_cert_file: str = file_setting(
        "CA certificate that signs for the four built-in signers; read again when it changes.",
        default_note="the cluster's CA",
    )
    cluster_signing_key_file: str = file_setting(
        "Private key of --cluster-signing-cert-file, or a pkcs11: URI; read again when it changes.", parse=_without_pin
    )
    cluster_signing_kubelet_serving_cert_file: str = file_setting("CA certificate for kubernetes.io/kubelet-serving.")
    cluster_signing_kubelet_serving_key_file: str = file_setting(
        "Key of --cluster-signing-kubelet-serving-cert-file.", parse=_without_pin
    )
    cluster_signing_kubelet_client_cert_file: str = file_setting(
        "CA certificate for kubernetes.io/kube-apiserver-client-kubelet."
    )
    cluster_signing_kubelet_client_key_file: str = file_setting(
        "Key of --cluster-signing-kubelet-client-cert-file.", parse=_without_pin
    )
    cluster_signing_kube_apiserver_client_cert_file: str = file_setting(
        "CA certificate for kubernetes.io/kube-apiserver-client."
    )
    cluster_signing_kube_apiserver_client_key_file: str = file_setting(
        "Key of --cluster-signing-kube-apiserver-client-cert-file.", parse=_without_pin
    )
    cluster_signing_legacy_unknown_cert_file: str = file_setting("CA certificate for kubernetes.io/legacy-unknown.")
    cluster_signing_legacy_unknown_key_file: str = file_setting(
        "Key of --cluster-signing-legacy-unknown-cert-file.", parse=_without_pin
    )
    signer: tuple[tuple[str, SigningFiles], ...] = setting(
        TEXTS,
        default=(),
        meaning="A signer of your own, with its CA certificate and key; repeatable.",
        metavar="NAME=CERT,KEY",
        parse=_own_signers,
    )
    cluster_signing_policy_file: str = file_setting(
        "Rules for what each signer signs (mooring.dev/v1alpha1 SigningPolicy); read again when it changes.",
        default_note="no rules but those of each signer",
    )
    cluster_signing_duration: timedelta = setting(
        DURATION,
        default=SIGNING_DURATION,
        meaning="Longest lifetime of signed certificates; a request may ask for less.",
        parse=duration_within(SHORTEST, LONGEST),
    )

    def __post_init__(self) -> None:
        """Raise ConfigError for half of a pair, and for one pair beside pairs of single signers."""
        # All pairs are looked at, so that half of one is reported first.
        single = [found for word in BUILT_IN.values() if (found := self._files(f"cluster-signing-{word}"))]
        if self._files("cluster-signing") and single:
            raise ConfigError(
                "cannot specify --cluster-signing-{cert,key}-file and other --cluster-signing-*-file flags at the same time"
            )

    def _files(self, prefix: str) -> SigningFiles | None:
        """Return the pair of files of the flags that begin so; None when neither is given. Raises ConfigError for one."""
        cert_key, key_key = f"{prefix}-cert-file", f"{prefix}-key-file"
        certificate: str = getattr(self, cert_key.replace("-", "_"))
        key: str = getattr(self, key_key.replace("-", "_"))
        if not certificate and not key:
            return None
        if not certificate or not key:
            missing, present = (key_key, cert_key) if certificate else (cert_key, key_key)
            raise ConfigError(f"{missing}: it is needed with {present}")
        return SigningFiles(cert_key, certificate, key_key, key)

    @property
    def files(self) -> Mapping[str, SigningFiles]:
        """Files by the name of the signer; a signer that is not in it has the default CA of the program."""
        shared = self._files("cluster-signing")
        found = {name: self._files(f"cluster-signing-{word}") or shared for name, word in BUILT_IN.items()}
        return {**{name: pair for name, pair in found.items() if pair is not None}, **dict(self.signer)}


OPTIONAL, REQUIRED = CHOICES = ("optional", "required")


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalSettings(Settings):
    """Approval of certificate requests."""

    heading: ClassVar[str] = "Approval of certificate requests"

    machine_inventory: str = setting(
        TEXT,
        default=OPTIONAL,
        meaning="Inventory of authorized machines: optional, or required, so that others wait for a person.",
        metavar="MODE",
        parse=one_of_words(CHOICES),
    )

    node_dns_suffixes: tuple[str, ...] = setting(
        COMMA_SEPARATED,
        default=(),
        meaning="Suffixes of DNS names, such as nodes.example.com. Any node may have a serving certificate for a free name below "
        "one of them; repeatable, or with commas.",
        metavar="SUFFIX,...",
        parse=parse_suffixes,
    )

    @property
    def inventory_required(self) -> bool:
        """Every joining machine needs an AuthorizedMachine, or the approval of a person."""
        return self.machine_inventory == REQUIRED
