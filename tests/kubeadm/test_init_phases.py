"""`kubeadm init phase bootstrap-token|upload-config|upload-certs` on the wire.

Source: docs/protocol/kubeadm-init.md.

kubeadm creates each object by POST, and replaces an existing one by PUT without a resourceVersion: on Mooring most of them exist.
"""

from __future__ import annotations

import base64
import secrets
from datetime import timedelta

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from mooring.api.kinds import KINDS
from mooring.apimachinery.schema import Obj
from mooring.authz.rbac.bootstrappolicy import kubeadm_policy
from mooring.clock import SystemClock, rfc3339
from tests.kubeadm.peers import Peer, create_or_update, encoded
from tests.support.typedclient import Client, RefusedError, poll

SYSTEM = "kube-system"
PLURALS = {kind.resource.kind: kind.resource.plural for kind in KINDS}
NONCE = 12
"""Bytes of AES-GCM's nonce, which precedes the ciphertext."""


@pytest.mark.parametrize(
    "wanted", kubeadm_policy(), ids=lambda wanted: f"{wanted['kind']} {wanted['metadata']['name']}"
)
def test_objects_of_init_replace_existing_ones(admin: Client, wanted: Obj) -> None:
    plural = PLURALS[wanted["kind"]]
    made = create_or_update(admin, plural, wanted)
    for part in ("rules", "subjects", "roleRef"):
        assert made.get(part) == wanted.get(part)


def test_a_binding_that_is_put_may_not_change_its_role(admin: Client) -> None:
    binding = next(one for one in kubeadm_policy() if one["kind"] == "ClusterRoleBinding")
    other = {**binding, "roleRef": {**binding["roleRef"], "name": "cluster-admin"}}
    with pytest.raises(RefusedError) as refused:
        create_or_update(admin, "clusterrolebindings", other)
    assert (refused.value.code, refused.value.status["reason"]) == (422, "Invalid")
    assert "cannot change roleRef" in refused.value.status["message"]


def test_cluster_info_that_is_put_again_is_signed_again(admin: Client, joiner: Peer) -> None:
    info = admin.get("configmaps", "kube-public", "cluster-info")
    kubeconfig = info["data"]["kubeconfig"]
    bare = {"metadata": {"name": "cluster-info", "namespace": "kube-public"}, "data": {"kubeconfig": kubeconfig}}
    put = create_or_update(admin, "configmaps", bare)
    assert put["data"] == {"kubeconfig": kubeconfig}, "PUT replaces: the signatures went"
    signed = [key for key in info["data"] if key.startswith("jws-kubeconfig-")]
    assert signed

    def again() -> bool:
        data = admin.get("configmaps", "kube-public", "cluster-info")["data"]
        return all(data.get(key) == info["data"][key] for key in signed)

    poll(again, "the signatures are back", 30)


@pytest.mark.parametrize(
    ("name", "key"), [("kubeadm-config", "ClusterConfiguration"), ("kubelet-config", "kubelet")], ids=lambda text: text
)
def test_upload_config_replaces_what_first_boot_wrote(admin: Client, name: str, key: str) -> None:
    before = admin.get("configmaps", SYSTEM, name)
    text = before["data"][key] + "# by kubeadm\n"
    try:
        made = create_or_update(
            admin, "configmaps", {"metadata": {"name": name, "namespace": SYSTEM}, "data": {key: text}}
        )
        assert made["data"] == {key: text}
        assert made["metadata"]["uid"] == before["metadata"]["uid"]
    finally:
        create_or_update(admin, "configmaps", {"metadata": {"name": name, "namespace": SYSTEM}, "data": before["data"]})


def test_upload_config_notes_the_cri_socket_on_the_node(admin: Client, kubelet: Peer, node: str) -> None:
    """Follow `upload-config kubelet`: GET the node, then a strategic merge patch of the changed annotation."""
    kubelet.create("nodes", "", {"metadata": {"name": node}})
    annotation = {"kubeadm.alpha.kubernetes.io/cri-socket": "unix:///run/containerd/containerd.sock"}
    patched = admin.patch("nodes", "", node, {"metadata": {"annotations": annotation}})
    assert patched["metadata"]["annotations"] == annotation


def test_uploaded_certificates_are_read_by_joiners_and_go_with_the_token_that_owns_them(
    admin: Client, joiner: Peer
) -> None:
    key = secrets.token_bytes(32)
    files = {"ca.crt": b"-----BEGIN CERTIFICATE-----\n", "sa.key": b"key", "front-proxy-ca.crt": b""}
    token = admin.create("secrets", SYSTEM, _ttl_token(timedelta(hours=2)))
    made = create_or_update(admin, "secrets", _certificates(token, key, files))
    assert made["metadata"]["ownerReferences"] == [_owner(token)]

    read = joiner.get("secrets", SYSTEM, "kubeadm-certs")
    assert {name: _decrypted(value, key) for name, value in read["data"].items()} == files

    for name in ("bootstrap-token-xxxxxx", token["metadata"]["name"]):
        with pytest.raises(RefusedError) as refused:
            joiner.get("secrets", SYSTEM, name)
        assert refused.value.code == 403, "a joiner reads this one Secret"

    expired = _ttl_token(timedelta(seconds=-1))
    expired["metadata"]["name"] = token["metadata"]["name"]
    expired["data"]["token-id"] = token["data"]["token-id"]
    create_or_update(admin, "secrets", expired)
    path = f"/api/v1/namespaces/{SYSTEM}/secrets/"
    poll(lambda: admin.refusal("GET", path + token["metadata"]["name"]) == 404, "the token is cleaned up")
    poll(lambda: admin.refusal("GET", path + "kubeadm-certs") == 404, "its dependent is collected")


def _ttl_token(ttl: timedelta) -> Obj:
    """Return the token that only carries a lifetime: no usages, no groups."""
    token_id = secrets.token_hex(3)
    return {
        "metadata": {"name": f"bootstrap-token-{token_id}", "namespace": SYSTEM},
        "type": "bootstrap.kubernetes.io/token",
        "data": encoded(
            token_id=token_id,
            token_secret=secrets.token_hex(8),
            description="stands for the lifetime of kubeadm-certs",
            expiration=rfc3339(SystemClock().now() + ttl),
        ),
    }


def _owner(token: Obj) -> Obj:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "name": token["metadata"]["name"],
        "uid": token["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def _certificates(token: Obj, key: bytes, files: dict[str, bytes]) -> Obj:
    return {
        "metadata": {"name": "kubeadm-certs", "namespace": SYSTEM, "ownerReferences": [_owner(token)]},
        "data": {name: _encrypted(value, key) for name, value in files.items()},
    }


def _encrypted(data: bytes, key: bytes) -> str:
    nonce = secrets.token_bytes(NONCE)
    return base64.b64encode(nonce + AESGCM(key).encrypt(nonce, data, None)).decode()


def _decrypted(text: str, key: bytes) -> bytes:
    data = base64.b64decode(text)
    return AESGCM(key).decrypt(data[:NONCE], data[NONCE:], None)
