"""Entry of the lineage for one certificate, which is recorded before the certificate is published."""

from __future__ import annotations

import hashlib
from datetime import datetime

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from mooring.api.certificates.sourceaddress import source_address_of
from mooring.api.mooring.lineagerecord import EVENT_ISSUED, MAX_TEXT
from mooring.apimachinery.schema import Obj
from mooring.clock import rfc3339
from mooring.identity import CREDENTIAL_ID, NODE_PREFIX, bootstrap_token_id
from mooring.pki.keys import accepted_public_key, public_key_fingerprint
from mooring.pki.x509 import names
from mooring.pki.x509.authority import Authority
from mooring.pki.x509.signers import KUBE_APISERVER_CLIENT_KUBELET
from mooring.pki.x509.supervisorsigners import K3S_KUBELET_CLIENT

_KUBELET_CLIENT = (KUBE_APISERVER_CLIENT_KUBELET, K3S_KUBELET_CLIENT)


def issued_entry(
    csr: Obj, certificate: x509.Certificate, authority: Authority, now: datetime, *, trusts_source_address: bool
) -> Obj:
    """Return the entry for a certificate that `authority` signed for the request `csr`. Values that are not known are empty."""
    spec, metadata = csr["spec"], csr["metadata"]
    subject = names.common_name(certificate.subject)
    is_node = spec["signerName"] in _KUBELET_CLIENT and subject.startswith(NODE_PREFIX)
    requester = spec.get("username", "")
    entry = {
        "time": rfc3339(now),
        "event": EVENT_ISSUED,
        "token": bootstrap_token_id(requester),
        "request": metadata["name"],
        "requestUID": metadata.get("uid", ""),
        "requester": requester,
        "credential": next(iter((spec.get("extra") or {}).get(CREDENTIAL_ID) or ()), ""),
        "sourceAddress": source_address_of(csr) if trusts_source_address else "",
        "signer": spec["signerName"],
        "subject": subject,
        "node": subject.removeprefix(NODE_PREFIX) if is_node else "",
        "publicKey": _fingerprint(certificate),
        "certificate": "sha256:" + hashlib.sha256(certificate.public_bytes(Encoding.DER)).hexdigest(),
        "serialNumber": f"{certificate.serial_number:x}",
        "issuer": f"sha256:{authority.key_fingerprint}",
        "notBefore": rfc3339(certificate.not_valid_before_utc),
        "notAfter": rfc3339(certificate.not_valid_after_utc),
    }
    return {name: _bounded(text) for name, text in entry.items() if text}


def _fingerprint(certificate: x509.Certificate) -> str:
    return "sha256:" + public_key_fingerprint(accepted_public_key(certificate.public_key()))


def _bounded(text: str) -> str:
    """Return a text that a record accepts. Names of requests and users may hold other characters, and be longer."""
    return "".join(char if char.isprintable() else "\ufffd" for char in text[:MAX_TEXT])
