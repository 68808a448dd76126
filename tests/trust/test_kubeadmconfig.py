"""What `kubeadm join` reads before it asks for a certificate (reference/kubernetes.md 2.5)."""

from __future__ import annotations

from ipaddress import ip_network
from typing import Any

import pytest
import yaml

from mooring.trust import kubeadmconfig
from mooring.wire.schema import Obj

SERVICES = ip_network("10.96.0.0/12")
OURS = kubeadmconfig.kubeadm_config("192.0.2.1:6443", "v1.36.2", SERVICES)
TEXT: str = OURS["data"]["ClusterConfiguration"]


def with_text(text: str) -> Obj:
    return {**OURS, "data": {"ClusterConfiguration": text}}


def test_a_joiner_finds_the_cluster_s_configuration_where_kubeadm_keeps_it() -> None:
    assert (OURS["kind"], OURS["apiVersion"]) == ("ConfigMap", "v1")
    assert OURS["metadata"] == {"name": "kubeadm-config", "namespace": "kube-system"}
    configuration = yaml.safe_load(TEXT)
    assert (configuration["apiVersion"], configuration["kind"]) == ("kubeadm.k8s.io/v1beta4", "ClusterConfiguration")
    assert configuration["clusterName"] == "kubernetes"
    assert configuration["controlPlaneEndpoint"] == "192.0.2.1:6443"
    assert configuration["kubernetesVersion"] == "v1.36.2"
    assert configuration["networking"] == {"dnsDomain": "cluster.local", "serviceSubnet": "10.96.0.0/12"}
    assert configuration["encryptionAlgorithm"] == "ECDSA-P256"


def test_a_joiner_finds_the_kubelet_s_configuration_where_kubeadm_keeps_it() -> None:
    config_map = kubeadmconfig.kubelet_config(SERVICES)
    assert config_map["metadata"] == {"name": "kubelet-config", "namespace": "kube-system"}
    configuration: dict[str, Any] = yaml.safe_load(config_map["data"]["kubelet"])
    assert configuration["apiVersion"] == "kubelet.config.k8s.io/v1beta1"
    assert configuration["kind"] == "KubeletConfiguration"
    assert configuration["rotateCertificates"] is True
    assert configuration["authentication"]["anonymous"]["enabled"] is False
    assert configuration["authorization"]["mode"] == "Webhook"
    assert configuration["clusterDNS"] == ["10.96.0.10"]
    assert "serverTLSBootstrap" not in configuration


@pytest.mark.parametrize(
    ("config_map", "ours"),
    [
        pytest.param(OURS, True, id="what was just written"),
        pytest.param(
            kubeadmconfig.kubeadm_config("[2001:db8::1]:6443", "v1.35.0", SERVICES), True, id="of another endpoint"
        ),
        pytest.param(
            kubeadmconfig.kubeadm_config("192.0.2.1:6443", "v1.36.2", ip_network("fd00::/108")),
            True,
            id="of another range",
        ),
        pytest.param(with_text(TEXT.replace("networking:", "other:")), False, id="without a network"),
        pytest.param(with_text(TEXT.replace("serviceSubnet: ", "x: ")), False, id="without a range"),
        pytest.param(with_text(TEXT + "featureGates: {}\n"), False, id="with a line more"),
        pytest.param(with_text(TEXT.replace("kubernetes\n", "prod\n")), False, id="with another name"),
        pytest.param(with_text(TEXT.replace("controlPlaneEndpoint: ", "# ")), False, id="without an endpoint"),
        pytest.param(with_text("kubernetesVersion: v1\ncontrolPlaneEndpoint: [x]\n"), False, id="of wrong types"),
        pytest.param(with_text("controlPlaneEndpoint: x\n"), False, id="without a version"),
        pytest.param(with_text(TEXT.replace("v1beta4", "v1beta3")), False, id="by a kubeadm before 1.31"),
        pytest.param(with_text("- a list\n"), False, id="no object"),
        pytest.param(with_text("not: [yaml"), False, id="no YAML"),
        pytest.param({"metadata": {}}, False, id="empty"),
    ],
)
def test_what_administrators_wrote_is_told_from_ours(config_map: Obj, ours: bool) -> None:
    assert kubeadmconfig.is_ours(config_map) is ours
