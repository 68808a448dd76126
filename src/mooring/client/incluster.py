"""Credentials of a Pod: its ServiceAccount's token and the cluster's CA, as kubelet projects them (client-go's InClusterConfig).

Rules kept here: the server is the one in KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT. The token is read again every minute,
because the kubelet renews it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from mooring.client.files import read_limited
from mooring.errors import ConfigError
from mooring.trust.httpsurl import named_cas
from mooring.trust.kubeconfig.model import Cluster, KubeconfigUser, Selected

DIRECTORY = Path("/var/run/secrets/kubernetes.io/serviceaccount")
HOST, PORT = "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"


def load(environ: Mapping[str, str] | None = None, directory: Path = DIRECTORY) -> Selected | None:
    """Return the cluster and user of this Pod; None outside of one. Raises ConfigError for files that cannot be read."""
    environ = os.environ if environ is None else environ
    host, port = environ.get(HOST, ""), environ.get(PORT, "")
    token = directory / "token"
    if not host or not port or not token.exists():
        return None
    if not port.isascii() or not port.isdigit():
        raise ConfigError(f"{PORT} is no port")
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    cluster = Cluster("in-cluster", server, ca_pem=named_cas(read_limited(directory / "ca.crt"), f"{directory}/ca.crt"))
    return Selected(cluster, KubeconfigUser("the Pod's ServiceAccount", token_file=str(token)), "")
