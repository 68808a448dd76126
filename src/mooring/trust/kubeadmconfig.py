"""ConfigMaps kubeadm-config and kubelet-config in kube-system, for `kubeadm join`.

Rules kept here (docs/protocol/discovery-and-join.md):
* kubeadm-config holds a ClusterConfiguration (kubeadm.k8s.io/v1beta4) as kubeadm writes it, with its defaults written out. Paths
  are kubeadm's, because they are those of the machine that joins. It has no pod subnet, since no Pods run here. It has no etcd:
  kubeadm fills in its default, which a worker does not use.
* kubelet-config holds a KubeletConfiguration (kubelet.config.k8s.io/v1beta1) with the fields that kubeadm sets. Zero values mean
  the kubelet's defaults and are left out. Client certificates rotate. `serverTLSBootstrap` is not set, because the requests for
  serving certificates would wait for approval.
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
"""Index of the cluster DNS in the range of Services: kubeadm takes the tenth address."""
CERTIFICATES = "/etc/kubernetes/pki"


def kubeadm_config(endpoint: str, version: str, services: Network) -> Obj:
    """Return a new kubeadm-config for the API server at `endpoint` (host:port), of Kubernetes `version` (v1.2.3).

    `services` is the range of the addresses of Services.
    """
    return _config_map(KUBEADM_NAME, KUBEADM_KEY, _cluster_configuration(endpoint, version, str(services)))


def kubelet_config(services: Network) -> Obj:
    """Return a new kubelet-config."""
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
