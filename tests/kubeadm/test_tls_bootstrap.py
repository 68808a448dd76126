"""TLS bootstrap of the kubelet: in one shot, or by the certificate manager.

Source: docs/protocol/kubelet-certificates.md.
"""

from __future__ import annotations

import base64
import hashlib
import ipaddress
from collections.abc import Callable

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import NameOID

from mooring.apimachinery.schema import Obj
from mooring.pki.keys import PrivateKey, generate_key, private_key_pem
from mooring.pki.x509.requests import build_request
from tests.kubeadm.peers import CLIENT_USAGES, CSRS, KUBELET_CLIENT, Peer, await_certificate, node_request
from tests.support.liveserver import LiveServer
from tests.support.typedclient import WATCH_LIST, Client, RefusedError, poll


def one_shot_name(key: PrivateKey, node: str) -> str:
    """Compute the deterministic name without Mooring's agent (docs/protocol/kubelet-certificates.md#one-request)."""
    der = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    parts = [der, f"system:node:{node}".encode(), b"system:nodes", *(usage.encode() for usage in CLIENT_USAGES)]
    digest = hashlib.new("sha512_256")
    for part in parts:
        digest.update(base64.urlsafe_b64encode(part).rstrip(b"=") + b"|")
    return "node-csr-" + base64.urlsafe_b64encode(digest.digest()).decode().rstrip("=")


def leaf(pem: bytes) -> x509.Certificate:
    return x509.load_pem_x509_certificates(pem)[0]


def subject(certificate: x509.Certificate) -> tuple[str, str]:
    names = [
        certificate.subject.get_attributes_for_oid(oid)[0].value
        for oid in (NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME)
    ]
    return str(names[0]), str(names[1])


class TestOneShot:
    def test_waits_for_healthz_then_asks_by_its_deterministic_name(
        self, live_server: LiveServer, joiner: Peer, node: str
    ) -> None:
        health = joiner.send("GET", "/healthz", timeout="1s")
        assert (health.code, health.body) == (200, b"ok")
        key = generate_key()
        made = joiner.create(CSRS, "", node_request(node, key, one_shot_name(key, node)))
        assert made["metadata"]["name"] == one_shot_name(key, node)
        assert "system:bootstrappers:kubeadm:default-node-token" in made["spec"]["groups"]
        issued = leaf(await_certificate(joiner, made))
        assert subject(issued) == (f"system:node:{node}", "system:nodes")
        assert issued.public_key() == key.public_key()
        issued.verify_directly_issued_by(leaf(live_server.ca_pem))

    def test_a_request_that_is_there_is_taken_up_again(self, joiner: Peer, node: str) -> None:
        key = generate_key()
        name = one_shot_name(key, node)
        first = joiner.create(CSRS, "", node_request(node, key, name))
        with pytest.raises(RefusedError) as refused:
            joiner.create(CSRS, "", node_request(node, key, name))
        status = refused.value.status
        assert (refused.value.code, status["reason"]) == (409, "AlreadyExists")
        assert status["details"]["kind"] == "certificatesigningrequests"
        found = joiner.get(CSRS, "", name)
        assert found["metadata"]["uid"] == first["metadata"]["uid"]
        assert found["spec"]["signerName"] == KUBELET_CLIENT
        request = x509.load_pem_x509_csr(base64.b64decode(found["spec"]["request"]))
        assert request.is_signature_valid
        assert request.public_key() == key.public_key()
        await_certificate(joiner, found)


class TestCertificateManager:
    def test_the_server_makes_the_name_up(self, joiner: Peer, node: str) -> None:
        requests = [joiner.create(CSRS, "", node_request(node, generate_key(), generate="csr-")) for _ in range(2)]
        names = {one["metadata"]["name"] for one in requests}
        assert len(names) == 2
        assert all(len(name) == len("csr-") + 5 and name.startswith("csr-") for name in names)

    def test_a_node_renews_by_itself(self, live_server: LiveServer, kubelet: Peer, node: str) -> None:
        key = generate_key()
        made = kubelet.create(CSRS, "", node_request(node, key, generate="csr-"))
        assert (made["spec"]["username"], made["spec"]["groups"][0]) == (f"system:node:{node}", "system:nodes")
        chain = await_certificate(kubelet, made)
        assert subject(leaf(chain)) == (f"system:node:{node}", "system:nodes")
        renewed = Peer(live_server, "kubelet", pem=private_key_pem(key) + chain)
        who = renewed.call("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", _self_review())
        assert who["status"]["userInfo"]["username"] == f"system:node:{node}"
        renewed.close()

    def test_a_node_asks_for_no_other_s_certificate(self, kubelet: Peer) -> None:
        with pytest.raises(RefusedError) as refused:
            kubelet.create(CSRS, "", node_request("another", generate_key(), generate="csr-"))
        assert refused.value.code == 403
        assert "can only create a node CSR with CN=system:node:" in refused.value.status["message"]

    def test_the_manager_stops_waiting_when_it_is_denied(self, kubelet: Peer, admin: Client, node: str) -> None:
        made = self._waiting(kubelet, node)
        self._decide(admin, made, "Denied")
        with pytest.raises(RefusedError) as refused:
            await_certificate(kubelet, made)
        assert (refused.value.status["type"], refused.value.status["reason"]) == ("Denied", "Tested")

    def test_the_manager_stops_waiting_when_the_signer_fails(self, kubelet: Peer, admin: Client, node: str) -> None:
        made = self._waiting(kubelet, node, signer="kubernetes.io/kube-apiserver-client")
        self._decide(admin, made, "Approved")
        with pytest.raises(RefusedError) as refused:
            await_certificate(kubelet, made)
        assert refused.value.status["type"] == "Failed"

    def test_the_manager_learns_that_its_request_is_deleted(self, kubelet: Peer, admin: Client, node: str) -> None:
        made = self._waiting(kubelet, node)
        name = made["metadata"]["name"]
        with kubelet.watch(CSRS, **WATCH_LIST, fieldSelector=f"metadata.name={name}") as watching:
            assert [one.brief for one in watching.initial()] == [f"ADDED {name}"]
            admin.delete(CSRS, "", name)
            # the approver may add a condition before the deletion
            poll(lambda: watching.next().brief == f"DELETED {name}", "the request is deleted")

    def test_a_serving_certificate_waits_for_a_person(self, kubelet: Peer, admin: Client, node: str) -> None:
        made = self._waiting(kubelet, node)

        def reasons() -> list[str]:
            status = admin.get(CSRS, "", made["metadata"]["name"]).get("status") or {}
            return [one["reason"] for one in status.get("conditions") or ()]

        poll(lambda: reasons() == ["NodeMissing"], "the approver says why it waits")
        self._decide(admin, made, "Approved")
        names = leaf(await_certificate(kubelet, made)).extensions.get_extension_for_class(x509.SubjectAlternativeName)
        assert names.value.get_values_for_type(x509.DNSName) == [node]

    def _waiting(self, kubelet: Peer, node: str, signer: str = "kubernetes.io/kubelet-serving") -> Obj:
        """Create a request for a serving certificate, which no controller approves, because the node has no Node."""
        pem = build_request(
            generate_key(), f"system:node:{node}", ("system:nodes",), (node,), (ipaddress.ip_address("192.0.2.7"),)
        )
        spec = {
            "request": base64.b64encode(pem).decode(),
            "signerName": signer,
            "usages": ["digital signature", "server auth"],
        }
        return kubelet.create(CSRS, "", {"metadata": {"generateName": "csr-"}, "spec": spec})

    def _decide(self, admin: Client, made: Obj, decision: str) -> None:
        """Decide as `kubectl certificate approve|deny`: PUT the approval."""

        def change(csr: Obj) -> None:
            condition = {"type": decision, "status": "True", "reason": "Tested", "message": "by a test"}
            csr["status"] = {**(csr.get("status") or {}), "conditions": [condition]}

        admin.retry_update(CSRS, "", made["metadata"]["name"], change, "approval")


def _self_review() -> Obj:
    return {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}


FORBIDDEN: dict[str, Callable[[Peer], Obj]] = {
    "read a Secret": lambda peer: peer.get("secrets", "kube-system", "x"),
    "list Nodes": lambda peer: peer.list("nodes"),
    "make a Node": lambda peer: peer.create("nodes", "", {"metadata": {"name": "x"}}),
}


@pytest.mark.parametrize("act", FORBIDDEN.values(), ids=FORBIDDEN)
def test_a_bootstrap_token_is_not_a_node(joiner: Peer, act: Callable[[Peer], Obj]) -> None:
    with pytest.raises(RefusedError) as refused:
        act(joiner)
    assert refused.value.code == 403
