"""PodCertificateRequests as a kubelet makes them, and what a signer answers."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from cryptography import x509

from mooring.clock import rfc3339
from mooring.pki import pem
from mooring.pki.keys import PrivateKey, generate_key
from mooring.pki.x509.requests import build_request
from tests.support.testca import ThrowawayCA

Obj = dict[str, Any]
SIGNER = "example.com/mesh"
KEY = generate_key()
UIDS = {"podUID": "u-pod", "serviceAccountUID": "u-account", "nodeUID": "u-node"}


def stub(key: PrivateKey = KEY, common_name: str = "") -> str:
    """Return the request of a kubelet in base64: empty, and signed with the key."""
    (block,) = pem.blocks(build_request(key, common_name))
    return base64.b64encode(block.der).decode()


def spec_of_pod(key: PrivateKey = KEY, **changed: Any) -> Obj:
    """Return the spec of a request for the Pod `p` of the account `default` on `n1`. A field that is None is left out."""
    spec = {
        "signerName": SIGNER,
        "podName": "p",
        "serviceAccountName": "default",
        "nodeName": "n1",
        **UIDS,
        "maxExpirationSeconds": 86_400,
        "stubPKCS10Request": stub(key),
        **changed,
    }
    return {name: value for name, value in spec.items() if value is not None}


def pod_request(key: PrivateKey = KEY, name: str = "r1", **changed: Any) -> Obj:
    """Return a request, whose spec `changed` changes."""
    return {"metadata": {"name": name, "namespace": "default"}, "spec": spec_of_pod(key, **changed)}


def condition(kind: str, now: datetime, **changed: Any) -> Obj:
    """Return a condition of a decision."""
    return {
        "type": kind,
        "status": "True",
        "reason": "Because",
        "message": "",
        "lastTransitionTime": rfc3339(now),
        **changed,
    }


def issued_status(
    ca: ThrowawayCA,
    now: datetime,
    key: PrivateKey = KEY,
    begin: timedelta = timedelta(minutes=-2),
    life: timedelta = timedelta(hours=2),
    extensions: Iterable[tuple[x509.ExtensionType, bool]] = (),
    **changed: Any,
) -> Obj:
    """Return the status of an issued request. A field that is None is left out."""
    not_before, not_after = now + begin, now + begin + life
    leaf = ca.custom("", key=key, not_before=not_before, not_after=not_after, extensions=tuple(extensions))
    status = {
        "conditions": [condition("Issued", now)],
        "certificateChain": leaf.certificate_pem.decode(),
        "notBefore": rfc3339(not_before),
        "beginRefreshAt": rfc3339(not_before + life / 2),
        "notAfter": rfc3339(not_after),
        **changed,
    }
    return {name: value for name, value in status.items() if value is not None}
