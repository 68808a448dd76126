"""ConfigMaps kubeadm-config and kubelet-config for `kubeadm join`.

Source: docs/protocol/discovery-and-join.md#objects-that-join-reads.
"""

from __future__ import annotations

from ipaddress import ip_network
from typing import Any

import pytest
import yaml

from mooring.apimachinery.schema import Obj
from mooring.trust import kubeadmconfig

SERVICES = ip_network("10.96.0.0/12")
OURS = kubeadmconfig.kubeadm_config("192.0.2.1:6443", "v1.37.1", SERVICES)
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
    assert configuration["kubernetesVersion"] == "v1.37.1"
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
    ("endpoint", "services", "line"),
    [
        ("192.0.2.1:6443", "10.96.0.0/12", "- '10.96.0.10'"),
        ("[fd00::1]:6443", "fd00:10:96::/108", "- fd00:10:96::a"),
        ("1:2", "1:2:3:4:5:6:7:0/112", "- '1:2:3:4:5:6:7:a'"),
    ],
)
def test_values_stay_texts_whatever_yaml_takes_them_for(endpoint: str, services: str, line: str) -> None:
    config_map = kubeadmconfig.kubeadm_config(endpoint, "v1.37.1", ip_network(services))
    configuration = yaml.safe_load(config_map["data"]["ClusterConfiguration"])
    assert (configuration["controlPlaneEndpoint"], configuration["networking"]["serviceSubnet"]) == (endpoint, services)
    assert line in kubeadmconfig.kubelet_config(ip_network(services))["data"]["kubelet"].splitlines()
