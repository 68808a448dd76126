"""Kubeconfig files that a command reads, and the credentials of a Pod where there is none."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from mooring.client.files import read_limited
from mooring.errors import ConfigError
from mooring.trust.httpsurl import named_cas
from mooring.trust.kubeconfig import (
    Cluster,
    Kubeconfig,
    KubeconfigError,
    KubeconfigUser,
    Selected,
    merge_kubeconfigs,
    resolve_paths,
    select_context,
)
from mooring.trust.kubeconfigtext import parse_kubeconfig

# Kubeconfig files: the ones that a command reads, by the loading rules of kubectl and kubeadm.
#
# 1. `--kubeconfig FILE` alone, which must exist.
# 2. The list in KUBECONFIG alone: missing files are skipped, and the first file to set a value wins.
# 3. The first of ~/.kube/config, /etc/kubernetes/admin.conf and `<data-dir>/admin.conf` that can be read.
# Paths inside a file are relative to its directory. When no file is found the error names every path that was tried.

ADMIN_CONF = "admin.conf"
KUBEADM_ADMIN_CONF = "/etc/kubernetes/admin.conf"


def default_paths(home: Path, data_dir: Path, kubeadm_conf: Path = Path(KUBEADM_ADMIN_CONF)) -> tuple[Path, ...]:
    """Return the paths of rule 3, in order."""
    return (home / ".kube" / "config", kubeadm_conf, data_dir / ADMIN_CONF)


def load(
    flag: str = "", context: str = "", *, defaults: Sequence[Path] = (), environ: Mapping[str, str] | None = None
) -> Selected:
    """Return the cluster and user of a context. `defaults` are the paths of rule 3. Raises ConfigError."""
    return select_context(load_config(flag, defaults=defaults, environ=environ), context)


def load_config(
    flag: str = "", *, defaults: Sequence[Path] = (), environ: Mapping[str, str] | None = None
) -> Kubeconfig:
    """Return the merged kubeconfig, by the rules above. Raises ConfigError."""
    if flag:
        return read(Path(flag))
    listed = (os.environ if environ is None else environ).get("KUBECONFIG", "")
    if listed:
        tried = [Path(part) for part in dict.fromkeys(listed.split(os.pathsep)) if part]
        if not tried:
            raise ConfigError(f'no kubeconfig: KUBECONFIG is "{listed}" and names no file; unset it, or name one')
        present = [path for path in tried if path.exists()]
        if not present:
            raise ConfigError(
                f"no kubeconfig: KUBECONFIG names {_join_paths(tried)}, which {'does' if len(tried) == 1 else 'do'} not exist"
            )
        return merge_kubeconfigs(read(path) for path in present)
    found = next((path for path in defaults if os.access(path, os.R_OK)), None)
    if found is None:
        looked = f"looked for {_join_paths(defaults)}; " if defaults else ""
        raise ConfigError(f"no kubeconfig: {looked}give one with --kubeconfig, or set KUBECONFIG")
    return read(found)


def read(path: Path) -> Kubeconfig:
    """Return the kubeconfig in one file. Raises ConfigError that names the file."""
    content = read_limited(path)
    try:
        return resolve_paths(parse_kubeconfig(content), str(path.absolute().parent))
    except KubeconfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _join_paths(paths: Sequence[Path]) -> str:
    texts = [str(path) for path in paths]
    return texts[0] if len(texts) == 1 else ", ".join(texts[:-1]) + " and " + texts[-1]


# Credentials of a Pod: its ServiceAccount's token and the cluster's CA, as kubelet projects them (client-go's InClusterConfig).
#
# Rules kept here: the server is the one in KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT. The token is read again every
# minute, because the kubelet renews it.

DIRECTORY = Path("/var/run/secrets/kubernetes.io/serviceaccount")
HOST, PORT = "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"


def load_in_cluster(environ: Mapping[str, str] | None = None, directory: Path = DIRECTORY) -> Selected | None:
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
