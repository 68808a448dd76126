"""Reason codes of client certificates, and of certificates of proxies. `mooring.pki.x509.verify` gives most of them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from mooring.authn.reasons import NEW_CERTIFICATE, Reason

NO_COMMON_NAME = "certificate-without-common-name"

REASONS: Mapping[str, Reason] = MappingProxyType(
    {
        "weak-key": Reason("The certificate's key is of a kind or size that is not accepted.", NEW_CERTIFICATE),
        "weak-signature": Reason("The certificate is signed over a hash that is broken.", NEW_CERTIFICATE),
        "unknown-critical-extension": Reason(
            "The certificate carries a critical extension that is not understood here.", NEW_CERTIFICATE
        ),
        "not-a-ca": Reason(
            "The certificate was issued by one that may not issue certificates.",
            "Have it issued by a CA; an intermediate needs basicConstraints CA:TRUE and keyUsage keyCertSign.",
        ),
        "path-too-long": Reason(
            "There are more intermediates than a CA of the chain allows.",
            "Have the certificate issued by a CA further up, or the pathlen of that CA raised.",
        ),
        "constrained-names": Reason(
            "A CA of the chain constrains names, and the certificate might break that.",
            "Have it issued without alternative names, or by a CA without name constraints.",
        ),
        "wrong-usage": Reason(
            "The certificate, or a CA above it, is not for clients.",
            "Have one issued with extended key usage clientAuth; a server's certificate is none.",
        ),
        "bad-uid": Reason("The certificate holds two UIDs, or one that is not text.", NEW_CERTIFICATE),
        NO_COMMON_NAME: Reason(
            "The certificate is good but names no user: its subject has no common name.", NEW_CERTIFICATE
        ),
    }
)
