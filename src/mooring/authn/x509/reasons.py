"""Reason codes of client certificates, and of certificates of proxies. `mooring.pki.x509.verify` gives most of them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from mooring.authn.reasons import NEW_CERTIFICATE, Reason

NO_COMMON_NAME = "certificate-without-common-name"
CERTIFICATE_REVOKED = "certificate-revoked"
KEY_REVOKED = "certificate-key-revoked"
NODE_REVOKED = "certificate-node-revoked"
NODE_DELETED = "node-deleted"
NODE_KEY_REPLACED = "node-key-replaced"
RETIRED_CA = "retired-ca"
CRL_REVOKED = "certificate-on-crl"
CRL_MISSING = "crl-missing"
CRL_NOT_CURRENT = "crl-not-current"

_REVOKED_IN_ERROR = (
    "If the revocation was a mistake, delete the entry that the detail names: kubectl delete certificaterevocation."
)

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
        "no-valid-policy": Reason(
            "A CA of the chain requires a policy that the certificate, or a CA between them, does not have.",
            "Have it issued under a policy of that CA.",
        ),
        "constrained-names": Reason(
            "A CA of the chain constrains names, and the certificate might break that.",
            "Have it issued without alternative names, or by a CA without name constraints.",
        ),
        "wrong-usage": Reason(
            "The certificate, or a CA above it, is not for clients.",
            "Have one issued with extended key usage clientAuth; a server's certificate is none.",
        ),
        RETIRED_CA: Reason(
            "A CA of the chain has a key that a rollover of the cluster's CA retired, no matter who certified it.",
            "Have a certificate issued by the CA that the cluster has now; a machine joins again.",
        ),
        "bad-serial-number": Reason(
            "The serial number is zero, negative or longer than 20 octets, so that it could not be revoked.",
            NEW_CERTIFICATE,
        ),
        "bad-uid": Reason("The certificate holds two UIDs, or an empty one.", NEW_CERTIFICATE),
        CERTIFICATE_REVOKED: Reason(
            "The serial number of the certificate is revoked.", f"{NEW_CERTIFICATE} {_REVOKED_IN_ERROR}"
        ),
        KEY_REVOKED: Reason(
            "The public key of the certificate is revoked, and with it every certificate of that key.",
            f"Have a certificate issued for a new key. {_REVOKED_IN_ERROR}",
        ),
        NODE_REVOKED: Reason(
            "Certificates of this node that were issued before a certain moment are revoked.",
            f"If the machine may return, let it join again: mooring join. {_REVOKED_IN_ERROR}",
        ),
        NODE_DELETED: Reason(
            "The Node of this certificate was deleted, which ended the membership of the machine.",
            "If the machine may return, let it join again with a valid token: mooring join. If the deletion was a mistake, remove "
            "nodeUID from its NodeIdentity: kubectl edit nodeidentity NAME.",
        ),
        NODE_KEY_REPLACED: Reason(
            "The name of the node belongs to another key by now: another machine joined under it after the certificate was issued.",
            "See which keys have the name: kubectl get nodeidentity NAME --output yaml. To give this machine the name, delete the "
            "Node and let the machine join again.",
        ),
        CRL_REVOKED: Reason(
            "The certificate, or one above it, is on the CRL of its CA.",
            f"{NEW_CERTIFICATE} If the revocation was a mistake, the CA issues a CRL without it: write it to client-crl-file.",
        ),
        CRL_MISSING: Reason(
            "With client-crl-strict: no CRL of the CA that issued the certificate was read. The caller got 503.",
            "Write the CRL of that CA to client-crl-file. For an intermediate, its certificate belongs into client-ca-file.",
        ),
        CRL_NOT_CURRENT: Reason(
            "With client-crl-strict: the CRL of the CA is past its nextUpdate or begins later. The caller got 503.",
            "Write the CRL that the CA has published since to client-crl-file, and compare the clocks.",
        ),
        NO_COMMON_NAME: Reason(
            "The certificate is good but names no user: its subject has no common name.", NEW_CERTIFICATE
        ),
    }
)
