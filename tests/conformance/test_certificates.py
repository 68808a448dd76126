"""[sig-auth] Certificates API [Privileged:ClusterAdmin]: test/e2e/auth/certificates.go.

Source: docs/protocol/e2e-tests.md#teste2eauth.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from mooring.apimachinery.schema import Obj
from mooring.pki.x509.requests import build_request
from tests.conformance.conftest import unique
from tests.support.testca import ThrowawayCA
from tests.support.typedclient import MERGE, Client, poll

KIND = "certificatesigningrequests"
GROUP = "/apis/certificates.k8s.io"
CONDITION = {"status": "True", "reason": "E2E", "message": "Set from an e2e test"}
APPROVED = {"type": "Approved", **CONDITION}


def request(key: rsa.RSAPrivateKey, name: str, *dns: str) -> str:
    return base64.b64encode(build_request(key, name, (), dns=dns)).decode()


@contextmanager
def granted(client: Client, user: str, rule: Obj) -> Iterator[None]:
    role = client.create("clusterroles", "", {"metadata": {"generateName": f"{user}-"}, "rules": [rule]})
    binding = {
        "metadata": {"generateName": f"{user}-"},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": role["metadata"]["name"],
        },
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
    }
    bound = client.create("clusterrolebindings", "", binding)
    yield
    client.delete("clusterrolebindings", "", bound["metadata"]["name"])
    client.delete("clusterroles", "", role["metadata"]["name"])


def test_should_support_building_a_client_with_a_csr(client: Client, space: str) -> None:
    name = "tester-csr"
    key = rsa.generate_private_key(65537, 2048)
    template = {
        "metadata": {"generateName": f"{name}-"},
        "spec": {
            "request": request(key, name),
            "usages": ["digital signature", "key encipherment", "client auth"],
            "signerName": "kubernetes.io/kube-apiserver-client",
            "expirationSeconds": 3600,
        },
    }
    rule = {"verbs": ["create"], "apiGroups": ["certificates.k8s.io"], "resources": [KIND]}
    with granted(client, name, rule):
        asked = client.create(KIND, "", template)
        asked["status"] = {"conditions": [APPROVED]}
        client.update(KIND, "", asked, "approval")
        made = asked["metadata"]["name"]
        poll(lambda: "certificate" in client.get(KIND, "", made).get("status", {}), "signed")
        chain = base64.b64decode(client.get(KIND, "", made)["status"]["certificate"])
        (certificate,) = x509.load_pem_x509_certificates(chain)
        lifetime = certificate.not_valid_after_utc - certificate.not_valid_before_utc
        assert lifetime <= timedelta(hours=1, minutes=5)

        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
        other = client.like(pem=pem + chain)
        own = other.create(KIND, "", template)
        other.close()
        assert own["spec"]["username"] == name
        client.delete(KIND, "", own["metadata"]["name"])
        client.delete(KIND, "", made)


def test_should_support_csr_api_operations(client: Client, dynamic: Client) -> None:
    key = rsa.generate_private_key(65537, 2048)
    signer = "example.com/" + unique("e2e")
    template = {
        "metadata": {"generateName": "e2e-example-csr-"},
        "spec": {
            "request": request(key, "e2e.example.com", "e2e.example.com"),
            "signerName": signer,
            "expirationSeconds": 3600,
            "usages": ["digital signature", "key encipherment", "server auth"],
        },
    }
    groups = {group["name"]: group for group in dynamic.call("GET", "/apis")["groups"]}
    assert "v1" in [version["version"] for version in groups["certificates.k8s.io"]["versions"]]
    assert "v1" in [version["version"] for version in dynamic.call("GET", GROUP)["versions"]]
    resources = {resource["name"] for resource in dynamic.call("GET", f"{GROUP}/v1")["resources"]}
    assert {KIND, f"{KIND}/approval", f"{KIND}/status"} <= resources

    made = [client.create(KIND, "", template) for _ in range(3)][-1]
    name, uid = made["metadata"]["name"], made["metadata"]["uid"]
    got = client.get(KIND, "", name)
    assert (got["metadata"]["uid"], got["spec"]["expirationSeconds"]) == (uid, 3600)
    listed = client.list(KIND, fieldSelector=f"spec.signerName={signer}")
    assert len(listed["items"]) == 3

    since = listed["metadata"]["resourceVersion"]
    with client.watch(KIND, resourceVersion=since, fieldSelector=f"metadata.name={name}") as watching:
        patched = client.patch(KIND, "", name, {"metadata": {"annotations": {"patched": "true"}}}, MERGE)
        assert patched["metadata"]["annotations"]["patched"] == "true"
        patched["metadata"]["annotations"]["updated"] = "true"
        assert client.update(KIND, "", patched)["metadata"]["annotations"]["updated"] == "true"
        event = watching.next()
        assert event.type == "MODIFIED"
        annotations = event.object["metadata"]["annotations"]
        assert (annotations["patched"], "updated" in annotations) == ("true", False)

    approval = dynamic.get(KIND, "", name, "approval")
    assert (approval["kind"], approval["apiVersion"]) == ("CertificateSigningRequest", "certificates.k8s.io/v1")
    assert approval["metadata"]["uid"] == uid
    patch: Obj = {
        "metadata": {"annotations": {"patchedapproval": "true"}},
        "status": {"conditions": [{"type": "ApprovalPatch", "status": "True", "reason": "e2e"}]},
    }
    patched = client.patch(KIND, "", name, patch, MERGE, "approval")
    assert [condition["type"] for condition in patched["status"]["conditions"]] == ["ApprovalPatch"]
    assert patched["metadata"]["annotations"]["patchedapproval"] == "true"
    patched["status"]["conditions"].append(APPROVED)
    updated = client.update(KIND, "", patched, "approval")
    assert [condition["type"] for condition in updated["status"]["conditions"]] == ["ApprovalPatch", "Approved"]

    status = dynamic.get(KIND, "", name, "status")
    assert (status["kind"], status["metadata"]["uid"]) == ("CertificateSigningRequest", uid)
    certificate = base64.b64encode(ThrowawayCA().certificate_pem).decode()
    patch = {"metadata": {"annotations": {"patchedstatus": "true"}}, "status": {"certificate": certificate}}
    patched = client.patch(KIND, "", name, patch, MERGE, "status")
    assert patched["status"]["certificate"] == certificate
    assert patched["metadata"]["annotations"]["patchedstatus"] == "true"
    patched["status"]["conditions"].append({"type": "StatusUpdate", **CONDITION})
    updated = client.update(KIND, "", patched, "status")
    assert len(updated["status"]["conditions"]) == 3
    assert updated["status"]["conditions"][-1]["type"] == "StatusUpdate"

    client.delete(KIND, "", name)
    assert client.refusal("GET", f"{GROUP}/v1/{KIND}/{name}") == 404
    only = f"spec.signerName={signer}"
    assert len(client.list(KIND, fieldSelector=only)["items"]) == 2
    client.delete_collection(KIND, "", fieldSelector=only)
    assert client.list(KIND, fieldSelector=only)["items"] == []
