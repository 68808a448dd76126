"""Kubeconfig text: YAML or JSON in, the YAML of Go's tools out, and edits of a user's file."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

import yaml

from mooring.apimachinery.codec.fieldreader import FieldReader
from mooring.apimachinery.codec.yaml import YamlError, read_yaml, resolve_scalar
from mooring.apimachinery.schema import Obj
from mooring.secret import Secret
from mooring.trust.kubeconfig import (
    AuthProvider,
    Cluster,
    ExecPlugin,
    Kubeconfig,
    KubeconfigContext,
    KubeconfigError,
    KubeconfigUser,
)

# Kubeconfig text: YAML or JSON in, the YAML of Go's tools out.
#
# Rules kept here:
# * Values are read as kubectl reads them (`mooring.apimachinery.codec.yaml`), limited in size, nesting and number. Anchors,
#   aliases, tags, a second document and a duplicate key are refused: two readers could see two clusters. The error has the line.
# * A wrong type is an error that names the field by its path; values are never repeated, since they may be credentials.
#   Unknown fields are ignored as client-go ignores them; extensions are kept.
# * Writing follows sigs.k8s.io/yaml: keys sorted, `""` in double quotes, lists not indented, an empty list as `null`, one newline
#   at the end; so the cluster-info text equals kubeadm's (docs/protocol/cluster-info.md#the-configmap; `preferences` only when
#   there are any, as client-go writes since 1.34).
# * `parse_kubeconfig(format_kubeconfig(config)) == config`.

MAX_BYTES = 1 << 20
"""Bytes: a kubeconfig of a hundred clusters has a tenth of this, and a ConfigMap holds no more."""
_WAY_OUT = "; `kubectl config view --raw --flatten` writes it plainly"
MAX_DEPTH = 64
"""Levels of nesting: the format has 6; the rest is for extensions."""
UNLIMITED = -1
"""Width of lines: none is folded."""
T = TypeVar("T")


def load(data: str | bytes) -> Any:
    """Return the value of one YAML or JSON document, within the limits above. Raises KubeconfigError."""
    if len(data) > MAX_BYTES:
        raise KubeconfigError(f"the kubeconfig is longer than {MAX_BYTES} bytes")
    try:
        document = read_yaml(data, max_depth=MAX_DEPTH, anchors_and_tags=False)
    except UnicodeDecodeError:
        raise KubeconfigError("the kubeconfig is neither YAML nor JSON") from None
    except YamlError as error:
        if not error.syntax:
            raise KubeconfigError(f"the kubeconfig cannot be read: {error}{_WAY_OUT}") from None
        place = f": it cannot be read at line {error.line}, column {error.column}" if error.line else ""
        raise KubeconfigError(f"the kubeconfig is neither YAML nor JSON{place}") from None
    if document.duplicates:
        raise KubeconfigError(f"the kubeconfig has a key twice in one object: {document.duplicates[0]}{_WAY_OUT}")
    return document.value


class _Fields(FieldReader):
    """Fields of one object of a kubeconfig."""

    def __init__(self, value: Any, path: str) -> None:
        super().__init__(value, path, KubeconfigError)

    def secret(self, key: str) -> Secret | None:
        text = self.text(key)
        return Secret(text) if text else None

    def data(self, key: str) -> bytes:
        try:
            return base64.b64decode(self.text(key).replace("\n", "").replace("\r", ""), validate=True)
        except (binascii.Error, ValueError):
            raise KubeconfigError(f"{self.path(key)} is not base64") from None

    def pairs(self, key: str, read: Callable[[Any, str], T]) -> tuple[tuple[str, T], ...]:
        return tuple((name, read(value, self.path(key))) for name, value in self.object(key).items())

    def secret_pairs(self, key: str) -> tuple[tuple[str, Secret], ...]:
        return self.pairs(key, lambda value, path: Secret(self.as_text(value, path)))

    def text_list_pairs(self, key: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
        return self.pairs(key, self.as_texts)

    def extensions(self) -> tuple[Obj, ...]:
        return self.each("extensions", self.as_object)


def parse_kubeconfig(data: str | bytes) -> Kubeconfig:
    """Return the kubeconfig in `data`, YAML or JSON. Raises KubeconfigError; `validate_kubeconfig` checks its references."""
    document = load(data)
    if not isinstance(document, dict | None):
        raise KubeconfigError("this is not a kubeconfig: the kubeconfig must be an object")
    top = _Fields(document, "")
    if top.text("kind") not in ("", "Config") or top.text("apiVersion") not in ("", "v1"):
        raise KubeconfigError("this is not a kubeconfig: kind must be Config and apiVersion v1")
    config = Kubeconfig(
        top.each("clusters", _cluster),
        top.each("users", _user),
        top.each("contexts", _context),
        top.text("current-context"),
        top.object("preferences"),
        top.extensions(),
    )
    entries: Mapping[str, tuple[Cluster, ...] | tuple[KubeconfigUser, ...] | tuple[KubeconfigContext, ...]] = {
        "clusters": config.clusters,
        "users": config.users,
        "contexts": config.contexts,
    }
    for key, listed in entries.items():
        if len({entry.name for entry in listed}) != len(listed):
            raise KubeconfigError(f"{key} has two entries of the same name")
    return config


def _cluster(value: Any, path: str) -> Cluster:
    named = _Fields(value, path)
    fields = _Fields(named.value("cluster"), named.path("cluster"))
    return Cluster(
        named.text("name"),
        fields.text("server"),
        fields.data("certificate-authority-data"),
        fields.text("certificate-authority"),
        fields.flag("insecure-skip-tls-verify"),
        fields.text("tls-server-name"),
        fields.text("proxy-url"),
        fields.flag("disable-compression"),
        fields.extensions(),
    )


def _context(value: Any, path: str) -> KubeconfigContext:
    named = _Fields(value, path)
    fields = _Fields(named.value("context"), named.path("context"))
    return KubeconfigContext(
        named.text("name"), fields.text("cluster"), fields.text("user"), fields.text("namespace"), fields.extensions()
    )


def _user(value: Any, path: str) -> KubeconfigUser:
    named = _Fields(value, path)
    fields = _Fields(named.value("user"), named.path("user"))
    key = fields.data("client-key-data")
    return KubeconfigUser(
        named.text("name"),
        certificate_pem=fields.data("client-certificate-data"),
        certificate_file=fields.text("client-certificate"),
        key=Secret(key) if key else None,
        key_file=fields.text("client-key"),
        token=fields.secret("token"),
        token_file=fields.text("tokenFile"),
        username=fields.text("username"),
        password=fields.secret("password"),
        exec=_exec(fields.value("exec"), fields.path("exec")),
        auth_provider=_auth_provider(fields.value("auth-provider"), fields.path("auth-provider")),
        impersonate=fields.text("as"),
        impersonate_uid=fields.text("as-uid"),
        impersonate_groups=fields.texts("as-groups"),
        impersonate_extra=fields.text_list_pairs("as-user-extra"),
        extensions=fields.extensions(),
    )


def _exec(value: Any, path: str) -> ExecPlugin | None:
    if value is None:
        return None
    fields = _Fields(value, path)
    return ExecPlugin(
        fields.text("command"),
        fields.text("apiVersion"),
        fields.texts("args"),
        fields.each("env", _env),
        fields.text("installHint"),
        fields.flag("provideClusterInfo"),
        fields.text("interactiveMode"),
    )


def _env(value: Any, path: str) -> tuple[str, Secret]:
    fields = _Fields(value, path)
    return fields.text("name"), Secret(fields.text("value"))


def _auth_provider(value: Any, path: str) -> AuthProvider | None:
    if value is None:
        return None
    fields = _Fields(value, path)
    return AuthProvider(fields.text("name"), fields.secret_pairs("config"))


# ── write ────────────────────────────────────────────────────────────────────────────────────────────────────────


def kubeconfig_object(config: Kubeconfig) -> Obj:
    """Return the kubeconfig as a JSON object. It reveals every credential: it may only be written to a file of the owner."""
    top: Obj = {
        "kind": "Config",
        "apiVersion": "v1",
        "clusters": [{"name": entry.name, "cluster": _cluster_object(entry)} for entry in config.clusters] or None,
        "contexts": [{"name": entry.name, "context": _context_object(entry)} for entry in config.contexts] or None,
        "current-context": config.current_context,
        "users": [{"name": entry.name, "user": _user_object(entry)} for entry in config.users] or None,
    }
    return top | _present({"preferences": config.preferences, "extensions": list(config.extensions)})


def _present(fields: Obj) -> Obj:
    return {key: value for key, value in fields.items() if value}


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _revealed(secret: Secret | None) -> str:
    return secret.reveal().decode() if secret else ""


def _cluster_object(cluster: Cluster) -> Obj:
    return {"server": cluster.server} | _present(
        {
            "certificate-authority-data": _base64(cluster.ca_pem),
            "certificate-authority": cluster.ca_file,
            "insecure-skip-tls-verify": cluster.insecure_skip_tls_verify,
            "tls-server-name": cluster.tls_server_name,
            "proxy-url": cluster.proxy_url,
            "disable-compression": cluster.disable_compression,
            "extensions": list(cluster.extensions),
        }
    )


def _context_object(context: KubeconfigContext) -> Obj:
    return {"cluster": context.cluster, "user": context.user} | _present(
        {"namespace": context.namespace, "extensions": list(context.extensions)}
    )


def _user_object(user: KubeconfigUser) -> Obj:
    fields: Obj = {
        "client-certificate-data": _base64(user.certificate_pem),
        "client-certificate": user.certificate_file,
        "client-key-data": _base64(user.key.reveal()) if user.key else "",
        "client-key": user.key_file,
        "token": _revealed(user.token),
        "tokenFile": user.token_file,
        "username": user.username,
        "password": _revealed(user.password),
        "as": user.impersonate,
        "as-uid": user.impersonate_uid,
        "as-groups": list(user.impersonate_groups),
        "as-user-extra": {name: list(values) for name, values in user.impersonate_extra},
        "extensions": list(user.extensions),
    }
    if user.auth_provider is not None:
        config = {name: _revealed(value) for name, value in user.auth_provider.config}
        fields["auth-provider"] = {"name": user.auth_provider.name, "config": config or None}
    if user.exec is not None:
        fields["exec"] = {
            "command": user.exec.command,
            "args": list(user.exec.args) or None,
            "env": [{"name": name, "value": _revealed(value)} for name, value in user.exec.env] or None,
            "provideClusterInfo": user.exec.provide_cluster_info,
        } | _present(
            {
                "apiVersion": user.exec.api_version,
                "installHint": user.exec.install_hint,
                "interactiveMode": user.exec.interactive_mode,
            }
        )
    return _present(fields)


class _Dumper(yaml.CSafeDumper):
    """Writes every occurrence in full: no anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _style(text: str) -> str | None:
    """Quote text that Go reads as another type and PyYAML does not, such as `1e5` and `y`."""
    return '"' if text == "" else None if isinstance(resolve_scalar(text), str) else "'"


def _represent_text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, _style(text))


_Dumper.add_representer(str, _represent_text)


def format_kubeconfig(config: Kubeconfig) -> str:
    """Return the kubeconfig as YAML in the layout of kubectl and kubeadm. Raises KubeconfigError for half a character."""
    return dump_object(kubeconfig_object(config))


def dump_object(top: Obj) -> str:
    """Return a kubeconfig that is a JSON object as YAML in the layout of kubectl and kubeadm. Raises KubeconfigError."""
    try:
        text: str = yaml.dump(top, Dumper=_Dumper, allow_unicode=True, width=UNLIMITED, sort_keys=True)
    except UnicodeEncodeError:
        raise KubeconfigError("a text holds a surrogate, which is half a character and cannot be written") from None
    return text


# Edit of a user's kubeconfig: set fields of entries, add and remove entries, as `kubectl config set-…` and `delete-…` do.
#
# Rules kept here (client-go `clientcmd.ModifyConfig`):
# * Fields are set in the entry of that name, in its place. Its other fields stay. A new entry is appended. All other entries stay
#   as they are, unknown fields included. Comments and layout are lost, as with kubectl.
# * A text that is not a kubeconfig is refused.

LISTS = ("clusters", "contexts", "users")
Fields = Mapping[str, Any]
"""Fields to set in an entry, and in the objects in it. None removes a field."""


def add_entries(text: bytes, added: Kubeconfig) -> str:
    """Return `text` with the entries of `added`, whose names it must not have. Raises KubeconfigError.

    A current context in `added` becomes the current one.
    """
    top = _load_object(text)
    new = kubeconfig_object(added)
    for key in LISTS:
        top[key] = [*(top.get(key) or ()), *(new[key] or ())] or None
    if added.current_context:
        top["current-context"] = added.current_context
    return dump_object({"kind": "Config", "apiVersion": "v1"} | top)


def set_fields(text: bytes, kind: str, name: str, fields: Fields) -> str:
    """Return `text` with `fields` in an entry that it has. `kind` is one of `LISTS`. Raises KubeconfigError."""
    top = _load_object(text)
    entry = next(entry for entry in top[kind] if entry.get("name") == name)
    part = kind.removesuffix("s")
    entry[part] = _merged(entry.get(part), fields)
    return dump_object(top)


def remove_entries(text: bytes, removed: Mapping[str, Collection[str]]) -> str:
    """Return `text` without the entries of these names. The keys of `removed` are `LISTS`. Raises KubeconfigError.

    When the current context is removed there is none.
    """
    top = _load_object(text)
    for key in LISTS:
        top[key] = [entry for entry in top.get(key) or () if entry.get("name") not in removed[key]] or None
    if top.get("current-context") in removed["contexts"]:
        top["current-context"] = ""
    return dump_object(top)


def _merged(present: Any, fields: Fields) -> Obj:
    merged = dict(present) if isinstance(present, dict) else {}
    for key, value in fields.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merged(merged.get(key), value) if isinstance(value, Mapping) else value
    return merged


def _load_object(text: bytes) -> Obj:
    # Raises an error that names the field.
    parse_kubeconfig(text)
    top: Obj = load(text) or {}
    return top
