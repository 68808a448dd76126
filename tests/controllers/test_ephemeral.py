"""Certificates of ephemeral machines are short, and every record of them ends with them."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import timedelta
from ipaddress import ip_address

import pytest

from mooring.apimachinery.schema import Obj
from mooring.clock import parse_rfc3339
from mooring.controllers.actions import Create, RecordIssuance, Update
from mooring.controllers.certificates.sanpolicy.check import CertifiedNames
from mooring.controllers.certificates.sanpolicy.ownership import NameOwnership
from mooring.controllers.certificates.signing.signer import CsrSigner
from mooring.pki.keys import generate_key, public_key_fingerprint
from mooring.pki.x509.profiles import BACKDATE
from mooring.pki.x509.requests import build_request
from mooring.pki.x509.signers import (
    CREDENTIAL,
    K3S_KUBE_PROXY_CLIENT,
    K3S_KUBELET_CLIENT,
    K3S_KUBELET_SERVING,
    KUBE_APISERVER_CLIENT_KUBELET,
    KUBELET_SERVING,
    NODE_IP,
    NODE_NAME,
    NODE_PASSWORD,
    usages_of,
)
from mooring.settings.signing import SIGNING_DURATION
from tests.support.plans import HOUR, NOW, moment, plan, thing, token_secret, views
from tests.support.testca import ThrowawayCA

CA = ThrowawayCA(now=NOW)
KEY, DAY = generate_key(), 24 * HOUR
MINE = {"publicKey": f"sha256:{public_key_fingerprint(KEY)}", "notAfter": moment(HOUR)}
OTHER = {"publicKey": "sha256:" + "0" * 64, "notAfter": moment(HOUR)}
TOKEN, NODE = "system:bootstrap:abcdef", "system:node:n1"
PASSWORD = "uid-of-password"
KUBELETS = (KUBE_APISERVER_CLIENT_KUBELET, KUBELET_SERVING)


def csr(signer: str = KUBE_APISERVER_CLIENT_KUBELET, username: str = TOKEN, *, expiration: int | None = None) -> Obj:
    """Return an approved request, by kubeadm's way or by k3s's."""
    is_serving = signer in (KUBELET_SERVING, K3S_KUBELET_SERVING)
    names = (("n1",), (ip_address("192.0.2.1"),)) if is_serving else ((), ())
    spec: Obj = {
        "request": base64.b64encode(build_request(KEY, NODE, ("system:nodes",), *names)).decode(),
        "signerName": signer,
        "username": username,
        "usages": ["digital signature", "server auth" if is_serving else "client auth"],
    }
    if signer not in KUBELETS:
        password = {} if signer == K3S_KUBE_PROXY_CLIENT else {NODE_PASSWORD: [PASSWORD]}
        spec["extra"] = {CREDENTIAL: ["k3s-token"], NODE_NAME: ["n1"], NODE_IP: ["192.0.2.1"], **password}
        spec["usages"] = list(usages_of(signer, is_rsa=False))
    if expiration is not None:
        spec["expirationSeconds"] = expiration
    approved = {"conditions": [{"type": "Approved", "status": "True", "reason": "AutoApproved"}]}
    return thing("join", spec=spec, status=approved, metadata={"creationTimestamp": moment(timedelta(0))})


def issued(
    obj: Obj,
    silence: str = "",
    identity: Obj | None = None,
    duration: timedelta = SIGNING_DURATION,
    *,
    token: bool = True,
    node: bool = True,
) -> tuple[timedelta, Obj]:
    """Apply what the signer plans until it signs; return the life of the certificate and the recorded identity.

    `token`: the token is there until its claim is made. It is deleted then, before the signature.
    """
    password = thing("n1.node-password.k3s", "kube-system", metadata={"uid": PASSWORD})
    secret = token_secret()
    secret["metadata"]["annotations"] = {"mooring.dev/node-name": "n1"}
    if silence:
        secret["metadata"]["annotations"]["mooring.dev/ephemeral"] = silence
    nodes = [
        thing("n1", status={"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}, metadata={"uid": "u1"})
    ]
    checks = (CertifiedNames(signing_duration=duration), NameOwnership(CA.cluster_ca.for_signer, duration))
    signer = CsrSigner(CA.cluster_ca.for_signer, duration, checks, guards_extra=True)
    recorded = thing("n1", spec=identity) if identity is not None else None
    for _ in range(4):
        seen = views(
            certificatesigningrequests=[obj],
            nodeidentities=[recorded] if recorded else [],
            nodes=nodes if node else [],
            secrets=[password, *([secret] if token else [])],
        )
        first, *more = plan(signer, ("", "join"), seen)
        if isinstance(first, RecordIssuance):
            assert recorded is not None
            return parse_rfc3339(first.entry["notAfter"]) - NOW, recorded["spec"]
        for action in (first, *more):
            if isinstance(action, Create | Update):
                assert action.plural == "nodeidentities", action
                recorded, token = action.obj, False
    raise AssertionError("the signer goes on claiming")


EPHEMERAL = {"keys": [OTHER], "silenceSeconds": 1800}
SHORT_LIVED, MONTH, FOR_ALL = DAY, 28 * DAY, SIGNING_DURATION
K3S_OWNED = {**EPHEMERAL, "nodePasswordUID": PASSWORD}


@pytest.mark.parametrize(
    ("obj", "silence", "identity", "life"),
    [
        pytest.param(csr(), "30m", None, SHORT_LIVED, id="the first certificate"),
        pytest.param(csr(), "7d", None, MONTH, id="four times a long silence"),
        pytest.param(csr(), "365d", None, FOR_ALL, id="never longer than that of other machines"),
        pytest.param(csr(), "", None, FOR_ALL, id="another token"),
        pytest.param(csr(expiration=3600), "7d", None, HOUR, id="a shorter life that was asked for"),
        pytest.param(csr(username=NODE), "", EPHEMERAL, SHORT_LIVED, id="a renewal"),
        pytest.param(csr(username=NODE), "30m", {"keys": [OTHER]}, FOR_ALL, id="a renewal of another machine"),
        pytest.param(csr(username="system:recovering-node:n1"), "", EPHEMERAL, SHORT_LIVED, id="a recovery"),
        pytest.param(csr(KUBELET_SERVING, NODE), "", EPHEMERAL, SHORT_LIVED, id="a serving certificate"),
        pytest.param(csr(), "30m", {"keys": [MINE]}, FOR_ALL, id="the key has the name already, of another machine"),
        pytest.param(csr(), "", {"keys": [MINE], "silenceSeconds": 1800}, SHORT_LIVED, id="and of an ephemeral one"),
        pytest.param(csr(), "", EPHEMERAL, FOR_ALL, id="the name goes to a machine by another token"),
        pytest.param(csr(), "30m", {"keys": [MINE], "nodeUID": "u0"}, SHORT_LIVED, id="the same key joins again"),
        pytest.param(csr(K3S_KUBELET_SERVING), "30m", None, SHORT_LIVED, id="k3s's first request"),
        pytest.param(csr(K3S_KUBELET_CLIENT), "30m", {"nodePasswordUID": PASSWORD}, SHORT_LIVED, id="k3s's second"),
        pytest.param(csr(K3S_KUBELET_CLIENT, NODE), "", K3S_OWNED, SHORT_LIVED, id="k3s's renewal"),
        pytest.param(csr(K3S_KUBELET_CLIENT), "7d", {**K3S_OWNED, "keys": [MINE]}, MONTH, id="k3s's join again"),
        pytest.param(csr(K3S_KUBE_PROXY_CLIENT, NODE), "", K3S_OWNED, SHORT_LIVED, id="k3s's shared users"),
    ],
)
def test_certificates_of_ephemeral_machines_are_short_and_their_record_ends_with_them(
    obj: Obj, silence: str, identity: Obj | None, life: timedelta
) -> None:
    lasts, spec = issued(obj, silence, identity, node=identity != {"keys": [MINE], "nodeUID": "u0"})
    whole = (life, life - BACKDATE)  # lives of more than eight hours begin five minutes before
    assert lasts in whole
    signer = obj["spec"]["signerName"]
    if signer in (KUBELET_SERVING, K3S_KUBELET_SERVING):
        records: Sequence[Obj] = spec["certifiedNames"]
    elif signer == K3S_KUBE_PROXY_CLIENT:
        records = spec["companions"]
    else:
        records = spec["keys"][-1:]
    ends = [parse_rfc3339(one["notAfter"]) - NOW for one in records]
    assert ends
    assert all(lasts <= end <= lasts + 2 * BACKDATE for end in ends)


def test_the_duration_of_the_signer_is_never_exceeded() -> None:
    assert issued(csr(), "30m", duration=2 * HOUR)[0] == 2 * HOUR
    assert issued(csr(username=NODE), "", EPHEMERAL, 2 * HOUR)[0] == 2 * HOUR
