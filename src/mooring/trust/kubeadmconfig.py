"""The ConfigMaps kube-system/kubeadm-config and kube-system/kubelet-config, which `kubeadm join` reads before it asks for a
certificate (docs/protocol/discovery-and-join.md).

Rules kept here:
* kubeadm-config holds a ClusterConfiguration (kubeadm.k8s.io/v1beta4) as kubeadm writes it: its own defaults spelled out. Paths
  are those of the machine that joins, so they are kubeadm's, wherever Mooring keeps its own. Without a pod subnet: nothing here
  runs Pods. Without etcd: kubeadm fills in its default, which a worker does not use.
* kubelet-config holds a KubeletConfiguration (kubelet.config.k8s.io/v1beta1): only what kubeadm sets; what it writes as zero
  means "the kubelet's default" and is left out. Client certificates rotate; serving certificates are the kubelet's own until
  somebody approves those of `serverTLSBootstrap`, so that is not set.
"""

from __future__ import annotations

from typing import Any

from mooring.apimachinery.codec.yaml import encode_yaml
from mooring.apimachinery.schema import Obj
from mooring.settings.addresses import Network

NAMESPACE = "kube-system"
KUBEADM_NAME = "kubeadm-config"
KUBEADM_KEY = "ClusterConfiguration"
KUBELET_NAME = "kubelet-config"
KUBELET_KEY = "kubelet"
CLUSTER_NAME = "kubernetes"
DNS_DOMAIN = "cluster.local"
DNS_OFFSET = 10
"""kubeadm gives the cluster's DNS the tenth address of the range of Services."""
CERTIFICATES = "/etc/kubernetes/pki"


def kubeadm_config(endpoint: str, version: str, services: Network) -> Obj:
    """A fresh kubeadm-config for the API server at `endpoint` (host:port), of Kubernetes `version` (v1.2.3).

    `services` is the range of the addresses of Services.
    """
    return _config_map(KUBEADM_NAME, KUBEADM_KEY, _cluster_configuration(endpoint, version, str(services)))


def kubelet_config(services: Network) -> Obj:
    """A fresh kubelet-config."""
    return _config_map(KUBELET_NAME, KUBELET_KEY, _kubelet_configuration(str(services[DNS_OFFSET])))


def _cluster_configuration(endpoint: str, version: str, services: str) -> dict[str, Any]:
    return {
        "apiVersion": "kubeadm.k8s.io/v1beta4",
        "kind": "ClusterConfiguration",
        "apiServer": {},
        "caCertificateValidityPeriod": "87600h0m0s",
        "certificateValidityPeriod": "8760h0m0s",
        "certificatesDir": CERTIFICATES,
        "clusterName": CLUSTER_NAME,
        "controlPlaneEndpoint": endpoint,
        "controllerManager": {},
        "dns": {},
        "encryptionAlgorithm": "ECDSA-P256",
        "imageRepository": "registry.k8s.io",
        "kubernetesVersion": version,
        "networking": {"dnsDomain": DNS_DOMAIN, "serviceSubnet": services},
        "proxy": {},
        "scheduler": {},
    }


def _kubelet_configuration(dns: str) -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": CERTIFICATES + "/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "cgroupDriver": "systemd",
        "clusterDNS": [dns],
        "clusterDomain": DNS_DOMAIN,
        "healthzBindAddress": "127.0.0.1",
        "healthzPort": 10248,
        "rotateCertificates": True,
        "staticPodPath": "/etc/kubernetes/manifests",
    }


def _config_map(name: str, key: str, configuration: dict[str, Any]) -> Obj:
    return {
        "kind": "ConfigMap",
        "apiVersion": "v1",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "data": {key: encode_yaml(configuration).decode()},
    }
