"""`kubeadm join`: discovery without trust, and the permissions of a token.

Source: docs/protocol/discovery-and-join.md.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Iterator

import pytest
import yaml

from mooring.apimachinery.schema import Obj
from mooring.pki.keys import generate_key
from mooring.trust.bootstraptoken.token import BootstrapToken
from mooring.trust.discovery import clusterinfo
from mooring.trust.discovery.pins import pins_of
from tests.kubeadm.peers import CSRS, Peer, node_request
from tests.support.liveserver import LiveServer
from tests.support.typedclient import Client, RefusedError

SYSTEM = "kube-system"
INFO = "/api/v1/namespaces/kube-public/configmaps/cluster-info"


@pytest.fixture
def token(live_server: LiveServer) -> BootstrapToken:
    return live_server.create_token()


@pytest.fixture
def stranger(live_server: LiveServer) -> Iterator[Peer]:
    """Client of kubeadm before discovery: no credential, TLS not verified."""
    peer = Peer(live_server, "kubeadm", verify=False)
    yield peer
    peer.close()


@pytest.fixture
def verifying(live_server: LiveServer) -> Iterator[Peer]:
    """Client of kubeadm with the CA: TLS verified, still no credential."""
    peer = Peer(live_server, "kubeadm")
    yield peer
    peer.close()


def kubeconfig_of(info: Obj, token: BootstrapToken) -> str:
    """Return cluster-info's kubeconfig after a check of its signature (steps 3 and 4)."""
    text: str = info["data"]["kubeconfig"]
    expected = clusterinfo.sign(text.encode(), token.id, token.secret.reveal())
    assert info["data"][f"jws-kubeconfig-{token.id}"] == expected
    return text


def test_discovery_by_token(live_server: LiveServer, token: BootstrapToken, stranger: Peer, verifying: Peer) -> None:
    text = kubeconfig_of(stranger.call("GET", INFO, timeout="10s"), token)
    config = yaml.safe_load(text)
    (cluster,) = config["clusters"]
    assert (cluster["name"], config["users"], config["contexts"]) == ("", None, None)
    assert cluster["cluster"]["server"] == live_server.url
    ca = base64.b64decode(cluster["cluster"]["certificate-authority-data"])
    assert str(pins_of(ca)[0]) == live_server.pin
    assert kubeconfig_of(verifying.call("GET", INFO, timeout="10s"), token) == text


def test_discovery_is_no_more_than_one_config_map(stranger: Peer) -> None:
    for path in ("/api/v1/namespaces/kube-public/configmaps", f"/api/v1/namespaces/{SYSTEM}/configmaps/kubeadm-config"):
        assert stranger.refusal("GET", path) == 403


def test_an_unknown_token_is_unauthorized_not_forbidden(live_server: LiveServer) -> None:
    wrong = Peer(live_server, "kubeadm", f"{secrets.token_hex(3)}.{secrets.token_hex(8)}")
    with pytest.raises(RefusedError) as refused:
        wrong.get("configmaps", SYSTEM, "kubeadm-config")
    assert (refused.value.code, refused.value.status["reason"]) == (401, "Unauthorized")
    wrong.close()


def test_the_configuration_of_the_cluster_names_its_version_and_endpoint(live_server: LiveServer, joiner: Peer) -> None:
    text = joiner.get("configmaps", SYSTEM, "kubeadm-config")["data"]["ClusterConfiguration"]
    configuration = yaml.safe_load(text)
    version = joiner.send("GET", "/version", accept="application/json").body.decode()
    assert f'"gitVersion": "{configuration["kubernetesVersion"]}' in version.replace('":"', '": "')
    assert configuration["controlPlaneEndpoint"] == live_server.endpoint
    assert configuration["clusterName"] == "kubernetes"


def test_the_configuration_of_kubelets_lets_certificates_rotate(joiner: Peer) -> None:
    text = joiner.get("configmaps", SYSTEM, "kubelet-config")["data"]["kubelet"]
    assert yaml.safe_load(text)["rotateCertificates"] is True


def test_the_configuration_of_kube_proxy_is_missing_which_kubeadm_accepts(joiner: Peer) -> None:
    with pytest.raises(RefusedError) as refused:
        joiner.get("configmaps", SYSTEM, "kube-proxy")
    assert (refused.value.code, refused.value.status["reason"]) == (404, "NotFound")


def test_a_node_name_that_is_free_is_not_found(joiner: Peer, node: str) -> None:
    with pytest.raises(RefusedError) as refused:
        joiner.get("nodes", "", node)
    assert (refused.value.code, refused.value.status["details"]["kind"]) == (404, "nodes")


def test_a_node_name_that_is_taken_is_seen_with_its_conditions(joiner: Peer, kubelet: Peer, node: str) -> None:
    kubelet.create("nodes", "", {"metadata": {"name": node}})
    kubelet.patch_status("nodes", node, {"status": {"conditions": [{"type": "Ready", "status": "True"}]}})
    (ready,) = joiner.get("nodes", "", node)["status"]["conditions"]
    assert (ready["type"], ready["status"]) == ("Ready", "True")


REFUSED = {
    "all ConfigMaps of kube-system": ("GET", f"/api/v1/namespaces/{SYSTEM}/configmaps"),
    "another ConfigMap of kube-system": ("GET", f"/api/v1/namespaces/{SYSTEM}/configmaps/kube-root-ca.crt"),
    "all Secrets of kube-system": ("GET", f"/api/v1/namespaces/{SYSTEM}/secrets"),
    "all Nodes": ("GET", "/api/v1/nodes"),
    "the deletion of a Node": ("DELETE", "/api/v1/nodes/x"),
    "cluster-info, which is for the anonymous": ("GET", INFO),
}


@pytest.mark.parametrize("asked", REFUSED.values(), ids=REFUSED)
def test_a_joiner_is_refused(joiner: Peer, asked: tuple[str, str]) -> None:
    method, path = asked
    assert joiner.refusal(method, path) == 403


def test_a_joiner_approves_nothing(joiner: Peer, admin: Client, node: str) -> None:

    made = joiner.create(CSRS, "", node_request(node, generate_key(), generate="csr-"))
    made["status"] = {"conditions": [{"type": "Approved", "status": "True", "reason": "x"}]}
    with pytest.raises(RefusedError) as refused:
        joiner.update(CSRS, "", made, "approval")
    assert refused.value.code == 403
    assert admin.get(CSRS, "", made["metadata"]["name"])["spec"]["username"].startswith("system:bootstrap:")
