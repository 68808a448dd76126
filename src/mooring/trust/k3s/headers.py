"""Paths and headers of k3s's supervisor API (docs/protocol/k3s.md#supervisor).

Rules kept here: the names are k3s's, with its program name `k3s`. HTTP compares names of headers without regard to case.
"""

from __future__ import annotations

PREFIX = "/v1-k3s"

CACERTS = "/cacerts"
PING = "/ping"
STATIC = "/static/"
CONFIG = f"{PREFIX}/config"
CLIENT_CA = f"{PREFIX}/client-ca.crt"
SERVER_CA = f"{PREFIX}/server-ca.crt"
APISERVERS = f"{PREFIX}/apiservers"
READYZ = f"{PREFIX}/readyz"
CONNECT = f"{PREFIX}/connect"
SERVING_KUBELET = f"{PREFIX}/serving-kubelet.crt"
CLIENT_KUBELET = f"{PREFIX}/client-kubelet.crt"
CLIENT_KUBE_PROXY = f"{PREFIX}/client-kube-proxy.crt"
CLIENT_CONTROLLER = f"{PREFIX}/client-k3s-controller.crt"
SERVER_BOOTSTRAP = f"{PREFIX}/server-bootstrap"
TOKEN = f"{PREFIX}/token"
CERT_CACERTS = f"{PREFIX}/cert/cacerts"
ENCRYPT_STATUS = f"{PREFIX}/encrypt/status"
ENCRYPT_CONFIG = f"{PREFIX}/encrypt/config"

NODE_NAME = "k3s-node-name"
NODE_PASSWORD = "k3s-node-password"  # noqa: S105 - the name of a header, not a password
NODE_IP = "k3s-node-ip"
