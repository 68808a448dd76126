"""Kubeconfig: its data model, and building, selecting, merging, flattening and validating it (client-go `clientcmd`).

Rules kept here (docs/protocol/discovery-and-join.md, docs/protocol/kubeadm-init.md,
docs/protocol/kubelet-certificates.md#kubeconfig):
* Tokens, passwords, keys, exec environments and auth-provider settings are `Secret`; certificates and CAs are public bytes.
* Inline data overrides the file of the same meaning, but `tokenFile` wins over `token`, as in client-go. Extensions are kept.
* Merging several files: the first to name an entry or the current context wins, whole entries at a time.
* No file is read here: flattening is given a function that reads one. `kubeconfig_problems` are those that `clientcmd.Validate`
  finds without reading files. `select_context` refuses what client-go's `transport` refuses before it connects, too: settings
  of one entry that contradict each other.

Text in and out is `mooring.trust.kubeconfigtext`.
"""

from __future__ import annotations

import base64
import posixpath
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeGuard, TypeVar

from mooring.apimachinery.names import dns1123_label_errors
from mooring.apimachinery.schema import Obj
from mooring.errors import ConfigError
from mooring.secret import Secret
from mooring.trust.httpproxy import proxy_url_problem
from mooring.trust.httpsurl import is_https, named_cas

EXEC_MODES = ("Never", "IfAvailable", "Always")
EXEC_OPTIONAL_MODE = ("client.authentication.k8s.io/v1alpha1", "client.authentication.k8s.io/v1beta1")
"""Exec API versions whose interactiveMode is optional. Its default is IfAvailable."""

CLIENT_CA = "mooring.dev/client-ca"
"""Extension of the cluster in cluster-info that holds the CAs of client certificates. The signature of cluster-info covers it."""
CLUSTER_ID = "mooring.dev/cluster-id"
"""Extension of the cluster in cluster-info that holds its id: the uid of the namespace kube-system. No change of CA changes it."""

_PORT = re.compile(r":[0-9]+$")


class KubeconfigError(ConfigError):
    """A kubeconfig cannot be read or used. The message names the field, never a credential."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Address of an API server, and how to verify it.

    `is_k3s`: a server of an agent k3s's way, which uses proxies of the environment only where they are allowed. No file holds that.
    """

    name: str
    server: str = ""
    ca_pem: bytes = b""
    ca_file: str = ""
    insecure_skip_tls_verify: bool = False
    tls_server_name: str = ""
    proxy_url: str = field(default="", repr=False)
    disable_compression: bool = False
    extensions: tuple[Obj, ...] = ()
    is_k3s: bool = False

    @property
    def way(self) -> Cluster:
        """The way to the server: address, CA, `tls-server-name`, proxy and all else that a connection depends on."""
        return replace(self, name="", extensions=())


@dataclass(frozen=True, slots=True)
class ExecPlugin:
    """A command that prints credentials."""

    command: str
    api_version: str = ""
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, Secret], ...] = ()
    install_hint: str = ""
    provide_cluster_info: bool = False
    interactive_mode: str = ""
    prints_token: bool = False
    """True for a command that prints a token itself, and no ExecCredential. No kubeconfig says so."""


@dataclass(frozen=True, slots=True)
class AuthProvider:
    """Plugin of the kind before exec: kept in the file, never run."""

    name: str
    config: tuple[tuple[str, Secret], ...] = ()


@dataclass(frozen=True, slots=True)
class KubeconfigUser:
    """Credentials of one user."""

    name: str
    certificate_pem: bytes = b""
    certificate_file: str = ""
    key: Secret | None = None
    key_file: str = ""
    token: Secret | None = None
    token_file: str = ""
    username: str = ""
    password: Secret | None = None
    exec: ExecPlugin | None = None
    auth_provider: AuthProvider | None = None
    impersonate: str = ""
    impersonate_uid: str = ""
    impersonate_groups: tuple[str, ...] = ()
    impersonate_extra: tuple[tuple[str, tuple[str, ...]], ...] = ()
    extensions: tuple[Obj, ...] = ()

    @property
    def credentials(self) -> tuple[str, ...]:
        """Return the kinds of credential present: `clientCertificate`, `token`, `tokenFile`, `basic`, `exec`, `authProvider`."""
        present = {
            "clientCertificate": bool(self.certificate_pem or self.certificate_file or self.key or self.key_file),
            "token": bool(self.token),
            "tokenFile": bool(self.token_file),
            "basic": bool(self.username or self.password),
            "exec": self.exec is not None,
            "authProvider": self.auth_provider is not None,
        }
        return tuple(kind for kind, there in present.items() if there)


@dataclass(frozen=True, slots=True)
class KubeconfigContext:
    """A named pair of cluster and user, with a default namespace."""

    name: str
    cluster: str = ""
    user: str = ""
    namespace: str = ""
    extensions: tuple[Obj, ...] = ()


class _Named(Protocol):
    @property
    def name(self) -> str: ...


N = TypeVar("N", bound=_Named)


def _find(entries: Iterable[N], name: str) -> N | None:
    return next((entry for entry in entries if entry.name == name), None)


@dataclass(frozen=True, slots=True)
class Kubeconfig:
    """A whole kubeconfig. Entries of one list have different names."""

    clusters: tuple[Cluster, ...] = ()
    users: tuple[KubeconfigUser, ...] = ()
    contexts: tuple[KubeconfigContext, ...] = ()
    current_context: str = ""
    preferences: Obj = field(default_factory=dict)
    extensions: tuple[Obj, ...] = ()

    def cluster(self, name: str) -> Cluster | None:
        return _find(self.clusters, name)

    def user(self, name: str) -> KubeconfigUser | None:
        return _find(self.users, name)

    def context(self, name: str) -> KubeconfigContext | None:
        return _find(self.contexts, name)


@dataclass(frozen=True, slots=True)
class Selected:
    """Cluster, user and default namespace of one context, and further addresses of the cluster."""

    cluster: Cluster
    user: KubeconfigUser
    namespace: str
    others: tuple[Cluster, ...] = ()


# ── build ────────────────────────────────────────────────────────────────────────────────────────────────────────


def address_of(server: str) -> str:
    """Return `host:port` of an https URL, followed by its path if it has one. The zone of an address is written as in RFC 4007."""
    host, slash, path = (server[8:] if is_https(server) else server).rstrip("/").partition("/")
    host = host.replace("%25", "%")
    return (host if _PORT.search(host) else f"{host}:443") + slash + path


def cluster_info_kubeconfig(
    server: str, ca_pem: bytes, *, others: Iterable[str] = (), client_ca_pem: bytes = b"", cluster_id: str = ""
) -> Kubeconfig:
    """Return the kubeconfig in cluster-info: one cluster without a name, and no user.

    `others` are further URLs of the same cluster, an entry each; kubeadm reads the first entry alone. `client_ca_pem` holds
    the CAs that sign client certificates. They are published where they differ from `ca_pem`.
    """
    extensions: tuple[Obj, ...] = id_extensions(cluster_id)
    if client_ca_pem and client_ca_pem != ca_pem:
        content = {"certificate-authority-data": base64.b64encode(client_ca_pem).decode()}
        extensions = (*extensions, {"name": CLIENT_CA, "extension": content})
    return Kubeconfig(clusters=address_entries(Cluster("", server, ca_pem, extensions=extensions), others))


def id_extensions(cluster_id: str) -> tuple[Obj, ...]:
    """Return the extension with the id of a cluster; none for ""."""
    return ({"name": CLUSTER_ID, "extension": {"id": cluster_id}},) if cluster_id else ()


def address_entries(cluster: Cluster, others: Iterable[str]) -> tuple[Cluster, ...]:
    """Return the entry `cluster`, and one for each further URL of the same cluster, named by its address."""
    return (cluster, *(Cluster(address_of(server), server, cluster.ca_pem) for server in others))


CLUSTER_NAME = "kubernetes"
"""Name of the cluster in admin.conf, as kubeadm writes it."""


def user_kubeconfig(
    server: str, ca_pem: bytes, user: KubeconfigUser, cluster_name: str = CLUSTER_NAME, *, others: Iterable[str] = ()
) -> Kubeconfig:
    """Return one cluster, one user and the context `<user>@<cluster>`, as in admin.conf."""
    context = KubeconfigContext(f"{user.name}@{cluster_name}", cluster_name, user.name)
    return Kubeconfig(address_entries(Cluster(cluster_name, server, ca_pem), others), (user,), (context,), context.name)


def kubelet_kubeconfig(server: str, pem_file: str, *, ca_pem: bytes = b"", ca_file: str = "") -> Kubeconfig:
    """Return kubelet.conf. Certificate and key are read from one file, so that rotation needs no new kubeconfig."""
    return Kubeconfig(
        (Cluster("default-cluster", server, ca_pem, ca_file),),
        (KubeconfigUser("default-auth", certificate_file=pem_file, key_file=pem_file),),
        (KubeconfigContext("default-context", "default-cluster", "default-auth", "default"),),
        "default-context",
    )


# ── look up ──────────────────────────────────────────────────────────────────────────────────────────────────────


def discovery_cluster(config: Kubeconfig) -> Cluster:
    """Return the cluster of a discovery document: the one without a name, else that of the current context."""
    unnamed = config.cluster("")
    if unnamed is not None:
        return unnamed
    context = config.context(config.current_context)
    cluster = config.cluster(context.cluster) if context else None
    if cluster is None:
        raise KubeconfigError(
            "the kubeconfig has neither a cluster without a name nor a current context with a cluster"
        )
    return cluster


def other_addresses(config: Kubeconfig, cluster: Cluster) -> tuple[Cluster, ...]:
    """Return further addresses of `cluster`: entries named by their own address, or any entry when `cluster` has no name.

    An entry with another CA, or one that a context names, is another cluster: two clusters may have one CA. An entry that is not
    verified is left out.
    """
    named = {context.cluster for context in config.contexts}
    return tuple(
        entry
        for entry in config.clusters
        if entry is not cluster
        and (not cluster.name or entry.name == address_of(entry.server))
        and entry.name not in named
        and entry.ca_pem == cluster.ca_pem
        and not (entry.ca_file or cluster.ca_file)
        and not entry.insecure_skip_tls_verify
        and is_https(entry.server)
    )


def client_cas(cluster: Cluster) -> bytes:
    """Return the CAs of client certificates in cluster-info, as PEM; empty when it names none. Raises KubeconfigError."""
    for extension in cluster.extensions:
        if extension.get("name") == CLIENT_CA:
            content = extension.get("extension")
            text = content.get("certificate-authority-data") if isinstance(content, dict) else None
            try:
                return base64.b64decode(text, validate=True) if isinstance(text, str) else b""
            except ValueError:
                raise KubeconfigError(f"the extension {CLIENT_CA} is not base64") from None
    return b""


def cluster_id(cluster: Cluster) -> str:
    """Return the id of a cluster that published itself; "" without one."""
    contents = (one.get("extension") for one in cluster.extensions if one.get("name") == CLUSTER_ID)
    found = (content.get("id") for content in contents if isinstance(content, dict))
    return next((text for text in found if isinstance(text, str)), "")


def select_context(config: Kubeconfig, context_name: str = "") -> Selected:
    """Return cluster and user of a context, by default the current one, validated. Raises KubeconfigError."""
    name = context_name or config.current_context
    if not name:
        raise KubeconfigError(
            "the kubeconfig has no current context: name one with --context, or set it (kubectl config use-context)"
        )
    context = config.context(name)
    if context is None:
        raise KubeconfigError(f'the kubeconfig has no context "{name}"')
    cluster = config.cluster(context.cluster)
    user = config.user(context.user)
    found = _context_problems(context, config)
    found += _cluster_problems(cluster) + _trust_problems(cluster) if cluster else []
    found += _user_problems(user) + _header_problems(user) if user else []
    _refuse(found)
    # Its absence was a problem above.
    assert cluster is not None
    assert user is not None
    return Selected(cluster, user, context.namespace, other_addresses(config, cluster))


def refuse_contradictions(cluster: Cluster, user: KubeconfigUser | None) -> None:
    """Raise KubeconfigError for settings of the entries in use that contradict each other, as `select_context` does."""
    _refuse(_trust_problems(cluster) + (_header_problems(user) if user else []))


# ── merge, flatten ───────────────────────────────────────────────────────────────────────────────────────────────


def _first_of_each(lists: Iterable[Iterable[N]]) -> tuple[N, ...]:
    merged: dict[str, N] = {}
    for entries in lists:
        for entry in entries:
            merged.setdefault(entry.name, entry)
    return tuple(merged.values())


def merge_kubeconfigs(configs: Iterable[Kubeconfig]) -> Kubeconfig:
    """Return one kubeconfig of several, as KUBECONFIG lists them: the first to set a value wins."""
    given = tuple(configs)
    extensions: dict[str, Obj] = {}
    for config in given:
        for extension in config.extensions:
            extensions.setdefault(str(extension.get("name")), extension)
    return Kubeconfig(
        _first_of_each(config.clusters for config in given),
        _first_of_each(config.users for config in given),
        _first_of_each(config.contexts for config in given),
        next((config.current_context for config in given if config.current_context), ""),
        next((config.preferences for config in given if config.preferences), {}),
        tuple(extensions.values()),
    )


Read = Callable[[str], bytes]
"""Function that returns the content of the file at a path. Raises OSError."""


def _content(read: Read, what: str, path: str) -> bytes:
    try:
        return read(path)
    except OSError as error:
        raise KubeconfigError(f'{what} "{path}" cannot be read: {error.strerror or "input or output error"}') from None


def flatten_cluster(cluster: Cluster, read: Read) -> Cluster:
    """Return the cluster with its CA inline."""
    if not cluster.ca_file:
        return cluster
    if cluster.ca_pem:
        return replace(cluster, ca_file="")
    content = _content(read, "certificate-authority", cluster.ca_file)
    try:
        ca_pem = named_cas(content, cluster.ca_file)
    except ConfigError as error:
        raise KubeconfigError(f"certificate-authority: {error}") from None
    return replace(cluster, ca_pem=ca_pem, ca_file="")


def _token(content: bytes, path: str) -> Secret:
    if not content.isascii():
        raise KubeconfigError(f'tokenFile "{path}" does not hold a token: it is not ASCII text')
    return Secret(content)


def flatten_user(user: KubeconfigUser, read: Read) -> KubeconfigUser:
    """Return the user with certificate, key and token inline. An inline certificate or key overrides its file."""
    if user.certificate_file:
        pem = user.certificate_pem or _content(read, "client-certificate", user.certificate_file)
        user = replace(user, certificate_pem=pem, certificate_file="")
    if user.key_file:
        user = replace(user, key=user.key or Secret(_content(read, "client-key", user.key_file)), key_file="")
    if user.token_file:
        token = _token(_content(read, "tokenFile", user.token_file).strip(), user.token_file)
        user = replace(user, token=token, token_file="")
    return user


def resolve_paths(config: Kubeconfig, directory: str) -> Kubeconfig:
    """Return the kubeconfig with relative file names made absolute: they are relative to the kubeconfig's directory.

    The command of an exec plugin is one of them when it has a slash (client-go `GetAuthInfoFileReferences`). Without a slash it is
    looked up in PATH.
    """

    def absolute(path: str) -> str:
        return path if not path or path.startswith("/") else posixpath.normpath(posixpath.join(directory, path))

    return replace(
        config,
        clusters=tuple(replace(cluster, ca_file=absolute(cluster.ca_file)) for cluster in config.clusters),
        users=tuple(
            replace(
                user,
                certificate_file=absolute(user.certificate_file),
                key_file=absolute(user.key_file),
                token_file=absolute(user.token_file),
                exec=replace(user.exec, command=absolute(user.exec.command)) if _is_path(user.exec) else user.exec,
            )
            for user in config.users
        ),
    )


def _is_path(plugin: ExecPlugin | None) -> TypeGuard[ExecPlugin]:
    return plugin is not None and "/" in plugin.command


def refuse_relative_commands(config: Kubeconfig) -> None:
    """Raise KubeconfigError for a relative exec command of a kubeconfig that is in no directory: it would be a file of anyone's."""
    for user in config.users:
        if _is_path(user.exec) and not user.exec.command.startswith("/"):
            raise KubeconfigError(
                f'user "{user.name}" has the exec command "{user.exec.command}", which is relative to a kubeconfig file, and this '
                "kubeconfig is not in a file: give an absolute path, or a name that is looked up in PATH"
            )


# ── check ────────────────────────────────────────────────────────────────────────────────────────────────────────


def kubeconfig_problems(config: Kubeconfig) -> list[str]:
    """Return every problem that `clientcmd.Validate` finds without reading files."""
    if config == Kubeconfig():
        return ["the kubeconfig is empty"]
    found = []
    if config.current_context and config.context(config.current_context) is None:
        found.append(f'the current context "{config.current_context}" does not exist')
    for context in config.contexts:
        found += _context_problems(context, config)
    for user in config.users:
        found += _user_problems(user)
    for cluster in config.clusters:
        found += _cluster_problems(cluster)
    return found


def validate_kubeconfig(config: Kubeconfig) -> Kubeconfig:
    """Return the kubeconfig when it has no problem. Raises KubeconfigError that lists every problem."""
    _refuse(kubeconfig_problems(config))
    return config


def _refuse(found: list[str]) -> None:
    if found:
        listed = found[0] if len(found) == 1 else "[" + ", ".join(found) + "]"
        raise KubeconfigError(f"invalid configuration: {listed}")


def _context_problems(context: KubeconfigContext, config: Kubeconfig) -> list[str]:
    found = [] if context.name else ["a context has no name"]
    referred: Mapping[str, tuple[str, object]] = {
        "user": (context.user, config.user(context.user)),
        "cluster": (context.cluster, config.cluster(context.cluster)),
    }
    for what, (name, entry) in referred.items():
        if not name:
            found.append(f'context "{context.name}" names no {what}')
        elif entry is None:
            found.append(f'context "{context.name}" names the {what} "{name}", which does not exist')
    if context.namespace and dns1123_label_errors(context.namespace):
        found.append(f'context "{context.name}" has the namespace "{context.namespace}", which is not a DNS label')
    return found


def _cluster_problems(cluster: Cluster) -> list[str]:
    label = f'cluster "{cluster.name}"' if cluster.name else "the cluster without a name"
    found = [] if cluster.server else [f"{label} has no server"]
    if cluster.proxy_url and (problem := proxy_url_problem(cluster.proxy_url)):
        found.append(f"{label} has a proxy-url that cannot be used: {problem}")
    if cluster.ca_file and cluster.ca_pem:
        found.append(f"{label} has both certificate-authority and certificate-authority-data")
    return found


def _trust_problems(cluster: Cluster) -> list[str]:
    """Return a CA beside the flag that turns verification off (client-go `transport.TLSConfigFor`)."""
    if cluster.insecure_skip_tls_verify and (cluster.ca_file or cluster.ca_pem):
        return [
            f'cluster "{cluster.name}" has both a certificate authority and insecure-skip-tls-verify: remove the flag to verify '
            "the server, or the CA to accept any server"
        ]
    return []


def _header_problems(user: KubeconfigUser) -> list[str]:
    """Return two credentials for one header (client-go `transport.HTTPWrappersForConfig`)."""
    if user.token_file and (user.username or user.password):
        return [f'user "{user.name}" has both a tokenFile and a username or password']
    return []


def _user_problems(user: KubeconfigUser) -> list[str]:
    label = f'user "{user.name}"'
    found = []
    if user.certificate_pem or user.certificate_file:
        if user.certificate_pem and user.certificate_file:
            found.append(f"{label} has both client-certificate and client-certificate-data")
        if user.key and user.key_file:
            found.append(f"{label} has both client-key and client-key-data")
        if not user.key and not user.key_file:
            found.append(f"{label} has a client certificate without client-key or client-key-data")
    if user.exec is not None:
        found += _exec_problems(label, user.exec)
        if user.auth_provider is not None:
            found.append(f"{label} has both auth-provider and exec")
    if user.token and (user.username or user.password):
        found.append(f"{label} has both a token and a username or password")
    if (user.impersonate_uid or user.impersonate_groups or user.impersonate_extra) and not user.impersonate:
        found.append(f"{label} has as-uid, as-groups or as-user-extra without as")
    return found


def _exec_problems(label: str, plugin: ExecPlugin) -> list[str]:
    found = []
    if not plugin.command:
        found.append(f"{label} has an exec plugin without command")
    if not plugin.api_version:
        found.append(f"{label} has an exec plugin without apiVersion")
    if any(not name for name, _ in plugin.env):
        found.append(f"{label} has an exec plugin with an unnamed env variable")
    if not plugin.interactive_mode:
        if plugin.api_version not in EXEC_OPTIONAL_MODE:
            found.append(f"{label} has an exec plugin without interactiveMode")
    elif plugin.interactive_mode not in EXEC_MODES:
        found.append(f"{label} has an exec plugin whose interactiveMode is none of {', '.join(EXEC_MODES)}")
    return found
