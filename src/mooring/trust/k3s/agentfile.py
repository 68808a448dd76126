"""Configuration file of an agent, in the form of k3s's `/etc/rancher/k3s/config.yaml` and its drop-ins: the flags that it gives.

Rules kept here (docs/protocol/k3s.md#configuration-file-of-an-agent; k3s's pkg/configfilearg):
* A key is the long name of a flag, or its short form. A list repeats a flag. An empty value gives no flag.
* A later part replaces a value of an earlier one. With `key+` it appends to that value. A key that one part has twice is an error.
* A flag of k3s's runtime or log, or of `k3s server`, is listed, and its value is not read. Any other key is an error that
  names the nearest one. k3s skips both with a warning.
* Types are strict: a text that looks like a number needs quotes. All mistakes are reported at once, each with its file and line.
* No error repeats a value: some are secrets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from mooring.apimachinery.codec.yaml import YamlDocument, YamlError, read_yaml
from mooring.errors import ConfigError, quoted
from mooring.settings.declaration import Setting
from mooring.settings.valuetypes import COMMA_SEPARATED, LINES, OPTIONAL_PORT, PORT, SWITCH, TEXTS, ValueType

_REPEATABLE = (TEXTS, LINES, COMMA_SEPARATED)
_ONE_VALUE = "the flag has one value, and a plus appends to lists: leave it out"

OF_RUNTIME = frozenset(
    {
        "airgap-extra-registry",
        "bind-address",
        "container-runtime-endpoint",
        "default-runtime",
        "disable-default-registry-endpoint",
        "disable-selinux",
        "docker",
        "enable-pprof",
        "flannel-cni-conf",
        "flannel-conf",
        "flannel-iface",
        "image-credential-provider-bin-dir",
        "image-credential-provider-config",
        "image-service-endpoint",
        "kube-proxy-arg",
        "kubelet-arg",
        "no-flannel",
        "nonroot-devices",
        "pause-image",
        "prefer-bundled-bin",
        "private-registry",
        "protect-kernel-defaults",
        "resolv-conf",
        "rootless",
        "selinux",
        "snapshotter",
        "vpn-auth",
        "vpn-auth-file",
    }
)
"""Flags of `k3s agent` about kubelet, kube-proxy, the container runtime, images and the network of Pods."""
OF_LOG = frozenset({"alsologtostderr", "debug", "l", "log", "v", "vmodule"})
"""Flags of `k3s agent` about its log."""
OTHERS_OF_AGENT = frozenset({"c", "cluster-secret", "config"})
"""Flags of `k3s agent` that mean nothing in a file, and the one that `token` has replaced."""
OF_SERVER = frozenset(
    {
        "advertise-address",
        "advertise-port",
        "agent-token",
        "agent-token-file",
        "apiserver-bind-address",
        "apiserver-port",
        "cluster-cidr",
        "cluster-dns",
        "cluster-domain",
        "cluster-init",
        "cluster-reset",
        "cluster-reset-restore-path",
        "datastore-cafile",
        "datastore-certfile",
        "datastore-endpoint",
        "datastore-keyfile",
        "default-local-storage-path",
        "disable",
        "disable-agent",
        "disable-apiserver",
        "disable-cloud-controller",
        "disable-controller-manager",
        "disable-etcd",
        "disable-helm-controller",
        "disable-kube-proxy",
        "disable-network-policy",
        "disable-scheduler",
        "egress-selector-mode",
        "embedded-registry",
        "etcd-arg",
        "etcd-disable-snapshots",
        "etcd-expose-metrics",
        "etcd-s3",
        "etcd-s3-access-key",
        "etcd-s3-bucket",
        "etcd-s3-bucket-lookup-type",
        "etcd-s3-config-secret",
        "etcd-s3-endpoint",
        "etcd-s3-endpoint-ca",
        "etcd-s3-folder",
        "etcd-s3-insecure",
        "etcd-s3-proxy",
        "etcd-s3-region",
        "etcd-s3-retention",
        "etcd-s3-secret-key",
        "etcd-s3-session-token",
        "etcd-s3-skip-ssl-verify",
        "etcd-s3-timeout",
        "etcd-snapshot-compress",
        "etcd-snapshot-dir",
        "etcd-snapshot-name",
        "etcd-snapshot-reconcile-interval",
        "etcd-snapshot-retention",
        "etcd-snapshot-schedule-cron",
        "flannel-backend",
        "flannel-external-ip",
        "flannel-ipv6-masq",
        "helm-controller-arg",
        "helm-job-image",
        "https-listen-port",
        "kine-tls",
        "kube-apiserver-arg",
        "kube-cloud-controller-arg",
        "kube-cloud-controller-manager-arg",
        "kube-controller-arg",
        "kube-controller-manager-arg",
        "kube-scheduler-arg",
        "multus",
        "secrets-encryption",
        "secrets-encryption-provider",
        "service-cidr",
        "service-node-port-range",
        "servicelb-namespace",
        "supervisor-metrics",
        "supervisor-port",
        "system-default-registry",
        "tls-san",
        "tls-san-security",
        "write-kubeconfig",
        "write-kubeconfig-group",
        "write-kubeconfig-mode",
    }
)
"""Flags of `k3s server` alone. k3s skips them in the file of an agent, so that one file may serve both."""
SECRET_KEYS = frozenset(
    {
        "agent-token",
        "cluster-secret",
        "datastore-endpoint",
        "etcd-s3-access-key",
        "etcd-s3-secret-key",
        "etcd-s3-session-token",
        "token",
        "vpn-auth",
    }
)
"""Keys whose value is a secret, or may hold one."""
_IGNORED = OF_RUNTIME | OF_LOG | OTHERS_OF_AGENT | OF_SERVER
_MAX_SHOWN = 60
"""Characters of an unknown key in an error."""


@dataclass(frozen=True, slots=True)
class AgentFile:
    """Flags that a file and its drop-ins give."""

    values: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Values by the long name of the flag. A flag that may be repeated has a tuple."""
    ignored: tuple[str, ...] = ()
    """Keys of k3s that do not concern joining, in order."""
    secrets: Mapping[str, str] = field(default_factory=dict)
    """Paths of the parts that hold a secret, each with the key of the first one."""
    token_paths: tuple[str, ...] = ()
    """Paths of the parts that hold a value of `token`."""
    places: Mapping[str, str] = field(default_factory=dict)
    """Path and line of each value, by the long name of the flag."""


@dataclass(slots=True)
class _Given:
    """Value of one flag, and the place that gave it last."""

    value: Any
    place: str
    key: str


def read_agent_file(parts: Iterable[tuple[str, bytes]], settings: Sequence[Setting]) -> AgentFile:
    """Return the flags in parts of a configuration, each a path and a text, in order. Raises ConfigError."""
    kinds = {one.name: one.value_type for one in settings}
    short_forms = {one.short: one.name for one in settings if one.short}
    secret_keys = SECRET_KEYS.union(one.name for one in settings if one.secret)
    merged: dict[str, _Given] = {}
    ignored: dict[str, None] = {}
    secrets: dict[str, str] = {}
    token_paths: list[str] = []
    problems: list[str] = []
    for path, text in parts:
        document = _document(path, text)
        lines: dict[str, int] = {}
        for key, line in document.top_level_keys:
            name = short_forms.get(key, key)
            if key in lines and name.removesuffix("+") not in _IGNORED:
                twice = f"it is there twice, first in line {lines[key]}"
                problems.append(f"{path}: line {line}: {quoted(key[:_MAX_SHOWN])}: {twice}")
            lines.setdefault(key, line)
        for key, value in (document.value or {}).items():
            name = key.removesuffix("+")
            name = short_forms.get(name, name)
            if name in secret_keys and value not in (None, "", []):
                secrets.setdefault(path, name)
                if name == "token":
                    token_paths.append(path)
            place = f"{path}: line {lines.get(key, 0)}"
            if name in kinds:
                before = merged.get(name)
                if before is None or not key.endswith("+"):
                    merged[name] = _Given(value, place, key)
                elif kinds[name] in _REPEATABLE:
                    merged[name] = _Given([*_listed(before.value), *_listed(value)], place, key)
                elif _listed(value) and _listed(before.value):
                    problems.append(f"{place}: {quoted(key)}: {_ONE_VALUE}")
                elif _listed(value):
                    merged[name] = _Given(value, place, key)
            elif name in _IGNORED:
                ignored[name] = None
            else:
                problems.append(f"{place}: {quoted(key[:_MAX_SHOWN])}: {_unknown(name, kinds)}")
    values: dict[str, Any] = {}
    for name, given in merged.items():
        value = given.value
        if isinstance(value, list):  # an item without a value, as a template leaves it, is an empty text to k3s
            value = [one for one in value if one not in (None, "")]
        if value in (None, "", []):
            continue
        try:
            values[name] = _typed(kinds[name], value)
        except ValueError as error:
            problems.append(f"{given.place}: {quoted(given.key)}: {error}")
    if problems:
        raise ConfigError("; ".join(problems))
    places = {name: given.place for name, given in merged.items()}
    return AgentFile(values, tuple(ignored), secrets, tuple(token_paths), places)


def refused_flag(flag: str) -> str:
    """Return why a flag of the command line, with its dashes, is not taken; "" for one that k3s does not know."""
    name = flag.lstrip("-")
    if name in OF_RUNTIME:
        return f"{flag} belongs to k3s's runtime, and Mooring's agent runs none: leave it out"
    if name in OF_LOG:
        return f"{flag} belongs to k3s's log: leave it out; -v and -vv make Mooring's agent log more"
    if name == "cluster-secret":
        return f"{flag} has been replaced by --token"
    if name in OF_SERVER:
        return f"{flag} belongs to k3s server and not to an agent: leave it out"
    return ""


def ignored_keys(keys: Sequence[str]) -> str:
    """Return the sentence about keys that were ignored; "" without one."""
    groups = (
        ("Mooring's agent runs no kubelet, container runtime or network", OF_RUNTIME),
        ("flags of k3s server", OF_SERVER),
        ("flags of k3s's log and program", OF_LOG | OTHERS_OF_AGENT),
    )
    found = [(reason, [key for key in keys if key in group]) for reason, group in groups]
    texts = [f"{', '.join(names)} ({reason})" for reason, names in found if names]
    return f"ignored keys that do not concern joining: {'; '.join(texts)}" if texts else ""


def _document(path: str, text: bytes) -> YamlDocument:
    """Return the YAML in a part: an object, or nothing. Raises ConfigError."""
    try:
        document = read_yaml(text)
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: the file is not UTF-8 text") from None
    except YamlError as error:
        raise ConfigError(f"{path}: yaml: {error}") from None
    if document.value is not None and not isinstance(document.value, dict):
        raise ConfigError(
            f"{path}: a configuration is keys with values; write for example server: https://192.0.2.10:6443"
        )
    return document


def _listed(value: Any) -> list[Any]:
    if value in (None, ""):
        return []
    return value if isinstance(value, list) else [value]


def _typed(kind: ValueType[Any], value: Any) -> Any:
    """Return the value of a flag. Raises ValueError that says what to give.

    Booleans and ports are taken in quotes, too, as templates write them.
    """
    if kind is SWITCH and value in ("true", "false"):
        return value == "true"
    if (
        kind in (PORT, OPTIONAL_PORT)
        and isinstance(value, str)
        and value.isascii()
        and value.isdecimal()
        and len(value) <= 5
    ):
        return kind.from_file(int(value))
    return kind.normalise(kind.from_file(value))


def _unknown(name: str, known: Iterable[str]) -> str:
    plain = name.lstrip("-").replace("_", "-").lower()
    near = get_close_matches(plain, [*known, *sorted(_IGNORED)], n=1)
    return f'unknown key, did you mean "{near[0]}"?' if near else "unknown key"
