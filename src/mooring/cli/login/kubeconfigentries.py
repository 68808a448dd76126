"""Kubeconfig entries of a login, and the file that they are written to.

Rules kept here (client-go `clientcmd.PathOptions`): the file is the one that `kubectl config` would change. It is written under
kubectl's lock, whole or not at all, with mode 0600. Other entries are kept. A symbolic link stays a symbolic link.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mooring.client.files import home, make_directory, read_limited, write_atomic
from mooring.errors import ConfigError
from mooring.trust.kubeconfig.edit import add_entries
from mooring.trust.kubeconfig.model import ExecPlugin, Kubeconfig, KubeconfigContext, KubeconfigUser
from mooring.trust.login.execcredential import API_VERSIONS
from mooring.trust.login.loginrecord import Login


def login_entries(login: Login) -> Kubeconfig:
    """Return cluster, user and context of a login. The user runs `mooring credential`."""
    name, place = login.name, login.place
    plugin = ExecPlugin(
        "mooring",
        API_VERSIONS[0],
        ("credential", "--login", login.id),
        install_hint="Install mooring, or put it on PATH, and run mooring login again.",
        provide_cluster_info=True,
        interactive_mode="IfAvailable",
    )
    return Kubeconfig(
        (place.cluster(name),), (KubeconfigUser(name, exec=plugin),), (KubeconfigContext(name, name, name),), name
    )


def kubeconfig_target(named: str) -> Path:
    """Return the kubeconfig that kubectl would change.

    It is `named`, else the first in KUBECONFIG that exists, else the last in KUBECONFIG, else ~/.kube/config.
    """
    if named:
        return Path(named)
    candidates = [Path(part) for part in os.environ.get("KUBECONFIG", "").split(os.pathsep) if part]
    existing = [path for path in candidates if path.exists()]
    return (existing or candidates[-1:] or [home() / ".kube" / "config"])[0]


def write_entries(target: Path, added: Kubeconfig, *, use: bool) -> None:
    """Add entries to the kubeconfig `target`. With `use` their context becomes the current one. Raises ConfigError."""
    with locked(target) as (path, text):
        write_atomic(path, add_entries(text, added, use=use).encode())


@contextmanager
def locked(target: Path) -> Iterator[tuple[Path, bytes]]:
    """Hold kubectl's lock of a kubeconfig. Yield its real path and its content. Raises ConfigError."""
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
