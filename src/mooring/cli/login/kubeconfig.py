"""The kubeconfig that a login is written into.

Rules kept here (client-go `clientcmd.PathOptions`): the file is the one that `kubectl config` would change; it is changed under
kubectl's own lock, whole or not at all, 0600, and everything else in it is kept. A symbolic link stays one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mooring.client.files import make_directory, read_limited, write_atomic
from mooring.errors import ConfigError
from mooring.trust.kubeconfig.edit import add_entries
from mooring.trust.kubeconfig.model import Cluster, Context, ExecPlugin, Kubeconfig, User
from mooring.trust.login.execcredential import API_VERSIONS
from mooring.trust.login.loginrecord import Login


def entries(found: Login) -> Kubeconfig:
    name, place = found.name, found.place
    plugin = ExecPlugin(
        "mooring",
        API_VERSIONS[0],
        ("credential", "--login", found.id),
        install_hint="Install mooring, or put it on PATH, and run mooring login again.",
        provide_cluster_info=True,
        interactive_mode="IfAvailable",
    )
    at = Cluster(name, place.server, place.ca_pem, tls_server_name=place.tls_server_name, proxy_url=place.proxy_url)
    return Kubeconfig((at,), (User(name, exec=plugin),), (Context(name, name, name),), name)


def kubeconfig_target(named: str) -> Path:
    """The kubeconfig that kubectl would change: the one that is named, else of KUBECONFIG the first that exists or the last, else
    ~/.kube/config."""
    if named:
        return Path(named)
    candidates = [Path(part) for part in os.environ.get("KUBECONFIG", "").split(os.pathsep) if part]
    existing = [path for path in candidates if path.exists()]
    return (existing or candidates[-1:] or [Path.home() / ".kube" / "config"])[0]


def put(target: Path, made: Kubeconfig, *, use: bool) -> None:
    with changing(target) as (path, text):
        write_atomic(path, add_entries(text, made, use=use).encode())


@contextmanager
def changing(target: Path) -> Iterator[tuple[Path, bytes]]:
    """The file behind `target` and what is in it, under kubectl's lock. Raises ConfigError."""
    path = target.resolve()
    make_directory(path.parent)
    lock = path.with_name(path.name + ".lock")
    try:
        os.close(os.open(lock, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        raise ConfigError(f"{path} is being changed by another program; if none runs, remove {lock}") from None
    except OSError as error:
        raise ConfigError(f"{lock} cannot be made: {(error.strerror or str(error)).lower()}") from None
    try:
        yield path, read_limited(path) if path.exists() else b""
    finally:
        with suppress(OSError):
            lock.unlink()
