"""Edit of a user's kubeconfig: set fields of entries, add and remove entries, as `kubectl config set-…` and `delete-…` do.

Rules kept here (client-go `clientcmd.ModifyConfig`):
* Fields are set in the entry of that name, in its place. Its other fields stay. A new entry is appended. All other entries stay as
  they are, unknown fields included. Comments and layout are lost, as with kubectl.
* A text that is not a kubeconfig is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from mooring.apimachinery.schema import Obj
from mooring.trust.kubeconfig.model import Kubeconfig
from mooring.trust.kubeconfig.text import dump_object, kubeconfig_object, load, parse_kubeconfig

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
    parse_kubeconfig(text)  # raises an error that names the field
    top: Obj = load(text) or {}
    return top
