"""Kubeconfig entries of a login, and the files that they are written to.

Rules kept here (client-go `clientcmd.PathOptions`):
* A new entry is written to the file that `kubectl config` would change; an entry that exists is changed in its own file. A file is
  written under kubectl's lock, whole or not at all, with mode 0600. A symbolic link stays a symbolic link. A mount point is written
  in place and keeps its mode.
* A user entry is a login's when it runs `mooring credential` with the login's id, whatever its name is. A repeated login changes
  the cluster's address and CA and the login's id alone: namespaces, extensions, the plugin's command, its environment and further
  arguments stay.
* An entry of another login or of another program is never changed. `plan_entries` refuses its name before anything is sent.
"""

from __future__ import annotations

import base64
import os
import re
import shlex
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from mooring.client import kubeconfigfiles
from mooring.client.files import check_writable, home, make_directory, read_limited, real_path, replace_content
from mooring.errors import ConfigError
from mooring.pki.errors import PkiError
from mooring.pki.x509 import bundles
from mooring.trust.kubeconfig import (
    Cluster,
    ExecPlugin,
    Kubeconfig,
    KubeconfigContext,
    KubeconfigUser,
    flatten_cluster,
    merge_kubeconfigs,
)
from mooring.trust.kubeconfigtext import LISTS, add_entries, remove_entries, set_fields
from mooring.trust.loginrecord import API_VERSIONS, Login, Place

_ID = re.compile(r"[0-9a-f]{16}")
_SOURCE_FLAGS = "--username NAME (or --token-file FILE, or --oidc-issuer-url URL --oidc-client-id ID)"


def plugin_login(plugin: ExecPlugin | None) -> str:
    """Return the id of the login whose credential a plugin gives; "" for any other plugin.

    The command may be a wrapper, and there may be further arguments.
    """
    if plugin is not None and "credential" in plugin.args:
        for argument, following in pairwise((*plugin.args, "")):
            login_id = following if argument == "--login" else argument.removeprefix("--login=")
            if _ID.fullmatch(login_id) and argument.startswith("--login"):
                return login_id
    return ""


def login_user(login: Login, name: str) -> KubeconfigUser:
    """Return the user entry of a login: it runs `mooring credential`."""
    plugin = ExecPlugin(
        "mooring",
        API_VERSIONS[0],
        ("credential", "--login", login.id),
        install_hint="Install mooring, or put it on PATH, and run mooring login again.",
        provide_cluster_info=True,
        interactive_mode="IfAvailable",
    )
    return KubeconfigUser(name, exec=plugin)


@dataclass(frozen=True, slots=True)
class EntryPlan:
    """Changes of a kubeconfig, or of several that are read as one, for a login.

    `context`: the login's context. `added`: new entries. `changed`: kind of entry (`LISTS`), name and fields. `current`: the new
    current context; "" for no change. `cluster`: the entry of the cluster, where it exists.
    """

    context: str
    added: Kubeconfig
    changed: tuple[tuple[str, str, dict[str, Any]], ...]
    current: str
    cluster: Cluster | None


def plan_entries(
    config: Kubeconfig, login: Login, earlier: Collection[str], *, use: bool = True, preferred: str = ""
) -> EntryPlan:
    """Return the changes of `config` for `login`. Raises ConfigError that names an entry which belongs to something else.

    `earlier`: ids of the same login at other addresses. With `use` a context of the login becomes the current one unless one is
    already: `preferred`, where it is one of them.
    """
    name, place = login.name, login.place
    ids = {login.id, *earlier}
    users = [user for user in config.users if plugin_login(user.exec) in ids]
    if not users and config.user(name) is not None:
        raise _taken("user", name)
    user_names = [user.name for user in users] or [name]
    clusters = _clusters_of(config, login, user_names)
    contexts = [one.name for one in config.contexts if one.user in user_names and one.cluster in clusters]
    new_contexts: tuple[KubeconfigContext, ...] = ()
    new_clusters: tuple[Cluster, ...] = ()
    if not contexts:
        found = config.context(name)
        if found is not None and (found.user not in user_names or config.cluster(found.cluster) is not None):
            raise _taken("context", name)
        cluster_name = next(iter(clusters), name)
        if found is None:
            new_contexts = (KubeconfigContext(name, cluster_name, user_names[0]),)
        contexts = [name]
        if not clusters:
            cluster_name = found.cluster if found else name
            if config.cluster(cluster_name) is not None:
                raise _taken("cluster", cluster_name)
            new_clusters = (place.cluster(cluster_name),)
    changed: list[tuple[str, str, dict[str, Any]]] = [
        ("clusters", cluster, _cluster_fields(place))
        for cluster in clusters
        if not _is_at(config.cluster(cluster), place)
    ]
    for user in users:
        # Its id was found there.
        assert user.exec is not None
        args = [re.sub(rf"^(--login=)?{plugin_login(user.exec)}$", rf"\g<1>{login.id}", one) for one in user.exec.args]
        if args != list(user.exec.args) or not user.exec.provide_cluster_info:
            changed.append(("users", user.name, {"exec": {"args": args, "provideClusterInfo": True}}))
    new_users = () if users else (login_user(login, name),)
    chosen = next((one for one in (config.current_context, preferred, name) if one in contexts), contexts[0])
    is_current_wanted = (use or not config.current_context) and config.current_context != chosen
    return EntryPlan(
        chosen,
        Kubeconfig(new_clusters, new_users, new_contexts),
        tuple(changed),
        chosen if is_current_wanted else "",
        next((config.cluster(cluster) for cluster in clusters), None),
    )


def check_kubeconfig(login: Login) -> None:
    """Raise ConfigError when a context of the kubeconfig uses the login with another cluster.

    It is for clients that do not say which cluster they mean. They may read another kubeconfig, so this finds mistakes, and not
    every attack.
    """
    config = KubeconfigFiles("").read()
    users = {user.name for user in config.users if plugin_login(user.exec) == login.id}
    for context in config.contexts:
        cluster = config.cluster(context.cluster)
        if context.user in users and cluster is not None and not _is_at(cluster, login.place):
            raise ConfigError(
                f'this login is one of {login.place.server}, the context "{context.name}" uses it with another server, another CA, '
                "or none, and the client does not say which it means: the credential stays here"
            )


def new_login_command(login_id: str, kubeconfig: str = "") -> str:
    """Return the command that makes a new login in the entries of one whose record is lost: they do not say how to log in."""
    with suppress(ConfigError):
        config = KubeconfigFiles(kubeconfig).read()
        users = {user.name for user in config.users if plugin_login(user.exec) == login_id}
        for context in config.contexts:
            if context.user in users:
                chosen = ("--kubeconfig", kubeconfig) if kubeconfig else ()
                words = ("mooring", "login", *chosen, "--context", context.name, "--name", context.user)
                return f"{shlex.join(words)} {_SOURCE_FLAGS}"
    return f"mooring login --server URL {_SOURCE_FLAGS}"


def _clusters_of(config: Kubeconfig, login: Login, user_names: Collection[str]) -> list[str]:
    """Return the names of the cluster entries that are the login's. Raises ConfigError for its entry of another cluster."""
    used = {one.cluster for one in config.contexts if one.user in user_names}
    foreign = {one.cluster for one in config.contexts if one.user not in user_names}
    names = []
    for cluster in config.clusters:
        is_same_server = cluster.server.rstrip("/") == login.place.server
        if cluster.name in used and is_same_server:
            names.append(cluster.name)
        elif cluster.name in used and (cluster.name == login.name or cluster.name not in foreign):
            if not share_ca(cluster, login.place):
                if cluster.name != login.name:
                    # The user's own way to the login's cluster, by a gateway for example.
                    continue
                raise ConfigError(
                    f'the cluster "{login.name}" of the kubeconfig is of the login at {cluster.server}, and {login.place.server} '
                    f"has another CA: choose another --name, or run mooring logout --name {login.name} first"
                )
            names.append(cluster.name)
        elif cluster.name == login.name and cluster.name not in used | foreign and is_same_server:
            # Left over: its context was deleted.
            names.append(cluster.name)
    return names


def share_ca(cluster: Cluster, place: Place) -> bool:
    """Return True when a cluster entry and `place` have a CA in common, so that they are two addresses of one cluster."""
    try:
        ca_pem = flatten_cluster(cluster, _read).ca_pem
        both = [{cert.der for cert in bundles.certificates_among(pem)} for pem in (ca_pem, place.ca_pem)]
    except (PkiError, ConfigError):
        return False
    return bool(both[0] & both[1])


def _is_at(cluster: Cluster | None, place: Place) -> bool:
    # It is one of the kubeconfig's.
    assert cluster is not None
    try:
        flat = flatten_cluster(cluster, _read)
    except ConfigError:
        # The file with the CA is gone.
        return False
    same_ca = flat.ca_pem.strip() == place.ca_pem.strip()
    return flat.server.rstrip("/") == place.server and same_ca and not flat.insecure_skip_tls_verify


def _cluster_fields(place: Place) -> dict[str, Any]:
    return {
        "server": place.server,
        "certificate-authority": None,
        "certificate-authority-data": base64.b64encode(place.ca_pem).decode() or None,
        "insecure-skip-tls-verify": None,
    }


def _read(path: str) -> bytes:
    return read_limited(Path(path))


def _taken(what: str, name: str) -> ConfigError:
    return ConfigError(
        f'the kubeconfig has a {what} "{name}" that does not belong to this login: choose another --name'
    )


# ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────


def kubeconfig_target(named: str) -> Path:
    """Return the kubeconfig to which kubectl would add an entry.

    It is `named`, else the first in KUBECONFIG that exists, else the last in KUBECONFIG, else ~/.kube/config.
    """
    return (kubeconfig_files(named) or _listed()[-1:] or [home() / ".kube" / "config"])[0]


def kubeconfig_files(named: str) -> list[Path]:
    """Return the kubeconfigs that exist among those which kubectl would change, in their order. `named` is the only one."""
    if named:
        return [Path(named)]
    return [path for path in _listed() or [home() / ".kube" / "config"] if path.exists()]


def _listed() -> list[Path]:
    return [Path(part) for part in os.environ.get("KUBECONFIG", "").split(os.pathsep) if part]


class KubeconfigFiles:
    """Kubeconfigs that are read as one. New entries go to `target`. Raises ConfigError."""

    def __init__(self, named: str) -> None:
        self.target = kubeconfig_target(named)
        self._paths = list(dict.fromkeys([*kubeconfig_files(named), self.target]))

    def read(self) -> Kubeconfig:
        """Return the merged kubeconfig."""
        return merge_kubeconfigs(self._configs())

    def logins(self) -> dict[str, str]:
        """Return the name of the user for each login that the kubeconfigs run from this cache directory, by the login's id."""
        plugins = [(user.name, user.exec) for config in self._configs() for user in config.users if user.exec]
        own = {plugin_login(plugin): name for name, plugin in plugins if "XDG_CACHE_HOME" not in dict(plugin.env)}
        return {login_id: name for login_id, name in own.items() if login_id}

    def check(self, plan: Callable[[Kubeconfig], EntryPlan]) -> None:
        """Raise ConfigError when a file that the plan changes cannot be written."""
        for path in self._touched(plan(self.read())):
            with locked(path) as (real, _):
                check_writable(real, in_place=True)

    def apply(self, plan: Callable[[Kubeconfig], EntryPlan]) -> tuple[EntryPlan, Path | None]:
        """Carry out the plan for the merged kubeconfig. Return it, and the first file that was written."""
        touched = self._touched(plan(self.read()))
        with ExitStack() as stack:
            opened = {path: stack.enter_context(locked(path)) for path in self._paths if path in touched}
            planned = plan(self.read())
            if not self._touched(planned) <= touched:
                raise ConfigError("the kubeconfig has been changed by another program meanwhile; run the command again")
            texts = {path: text for path, (_, text) in opened.items()}
            for kind, name, fields in planned.changed:
                owner = self.owner(kind, name)
                texts[owner] = set_fields(texts[owner], kind, name, fields).encode()
            if planned.added != Kubeconfig():
                texts[self.target] = add_entries(texts[self.target], planned.added).encode()
            if planned.current:
                owner = self._owner_of_current()
                texts[owner] = add_entries(texts[owner], Kubeconfig(current_context=planned.current)).encode()
            for path, text in texts.items():
                replace_content(opened[path][0], text)
        return planned, next(iter(texts), None)

    def remove(self, login_ids: Collection[str], names: Collection[str]) -> None:
        """Remove the users that run these logins, their contexts, and the clusters of these names that no other context uses."""
        configs = self._configs()
        users = {user.name for config in configs for user in config.users if plugin_login(user.exec) in login_ids}
        contexts = [context for config in configs for context in config.contexts]
        left = {context.cluster for context in contexts if context.user not in users}
        removed = {
            "contexts": {context.name for context in contexts if context.user in users},
            "clusters": {name for name in names if name not in left} if users else set(),
        }
        for path, config in zip(self._paths, configs, strict=True):
            # Another file may have another user of the same name.
            removed["users"] = {user.name for user in config.users if plugin_login(user.exec) in login_ids}
            present: dict[str, Sequence[Any]] = {key: getattr(config, key) for key in LISTS}
            has_one = any(entry.name in removed[key] for key in LISTS for entry in present[key])
            if has_one or config.current_context in removed["contexts"]:
                with locked(path) as (real, text):
                    replace_content(real, remove_entries(text, removed).encode())

    def _configs(self) -> list[Kubeconfig]:
        return [kubeconfigfiles.read(path) if path.exists() else Kubeconfig() for path in self._paths]

    def _touched(self, plan: EntryPlan) -> set[Path]:
        touched = {self.owner(kind, name) for kind, name, _ in plan.changed}
        if plan.added != Kubeconfig():
            touched.add(self.target)
        return touched | ({self._owner_of_current()} if plan.current else set())

    def owner(self, kind: str, name: str) -> Path:
        """Return the first file that has an entry: the merged kubeconfig has that one. Raises ConfigError when none has it."""
        for path, config in zip(self._paths, self._configs(), strict=True):
            if any(entry.name == name for entry in getattr(config, kind)):
                return path
        raise ConfigError(
            f'the kubeconfig has no entry "{name}" of its {kind} any more: another program changed it meanwhile; run this again'
        )

    def _owner_of_current(self) -> Path:
        pairs = zip(self._paths, self._configs(), strict=True)
        return next((path for path, config in pairs if config.current_context), self.target)


@contextmanager
def locked(target: Path) -> Iterator[tuple[Path, bytes]]:
    """Hold kubectl's lock of a kubeconfig. Yield its real path and its content. Raises ConfigError."""
    path = real_path(target)
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
