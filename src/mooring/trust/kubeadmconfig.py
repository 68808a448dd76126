"""ConfigMaps kubeadm-config and kubelet-config in kube-system, for `kubeadm join`: the templates of the same names, filled in."""

from __future__ import annotations

from pkgutil import get_data
from string import Template

from mooring.apimachinery.codec.yaml import encode_yaml, read_yaml
from mooring.apimachinery.schema import Obj
from mooring.settings.addresses import Network

DNS_OFFSET = 10
"""Index of the cluster DNS in the range of Services: kubeadm takes the tenth address."""


def kubeadm_config(endpoint: str, version: str, services: Network) -> Obj:
    """Return a new kubeadm-config for the API server at `endpoint` (host:port), of Kubernetes `version` (v1.2.3).

    `services` is the range of the addresses of Services.
    """
    return _filled_in("kubeadm-config", endpoint=endpoint, version=version, services=str(services))


def kubelet_config(services: Network) -> Obj:
    """Return a new kubelet-config."""
    return _filled_in("kubelet-config", dns=str(services[DNS_OFFSET]))


def _filled_in(name: str, **values: str) -> Obj:
    text = get_data(__name__, f"{name}.yaml")
    assert text is not None, "the loader of this package reads no data"
    # In quotes where necessary.
    in_yaml = {key: encode_yaml(value).decode().rstrip() for key, value in values.items()}
    config_map: Obj = read_yaml(Template(text.decode()).substitute(in_yaml)).value
    return config_map
