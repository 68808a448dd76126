"""Edit of a user's kubeconfig: add and remove entries, as `kubectl config set-…` and `delete-…` do.

Rules kept here (client-go `clientcmd.ModifyConfig`):
* Entries of the same name are replaced in their place. New ones are appended. All others stay as they are, unknown fields
  included. Comments and layout are lost, as with kubectl.
* A text that is not a kubeconfig is refused.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from mooring.apimachinery.schema import Obj
from mooring.trust.kubeconfig.model import Kubeconfig
from mooring.trust.kubeconfig.text import dump_object, kubeconfig_object, load, parse_kubeconfig

_LISTS = ("clusters", "contexts", "users")


def add_entries(text: bytes, added: Kubeconfig, *, use: bool) -> str:
    """Return `text` with the entries of `added`. With `use` their context becomes the current one. Raises KubeconfigError.

    A text without a current context gets that of `added` in any case.
    """
    top = _load_object(text)
    new = kubeconfig_object(added)
    for key in _LISTS:
        by_name = {entry["name"]: entry for entry in new[key] or ()}
        kept = [by_name.pop(entry.get("name"), entry) for entry in top.get(key) or ()]
        top[key] = [*kept, *by_name.values()] or None
    if use or not top.get("current-context"):
        top["current-context"] = added.current_context
    return dump_object({"kind": "Config", "apiVersion": "v1"} | top)


def remove_entries(text: bytes, names: Collection[str]) -> str:
    """Return `text` without the users of these names, their contexts, and clusters of these names that no other context uses.

    Raises KubeconfigError.
    """
    top = _load_object(text)
    contexts = top.get("contexts") or []
    left = [entry for entry in contexts if _part(entry, "context").get("user") not in names]
    used = {_part(entry, "context").get("cluster") for entry in left}
    top["contexts"] = left or None
    top["users"] = [entry for entry in top.get("users") or () if entry.get("name") not in names] or None
    clusters = top.get("clusters") or ()
    top["clusters"] = [one for one in clusters if one.get("name") not in names or one.get("name") in used] or None
    if top.get("current-context") not in [entry.get("name") for entry in left]:
        top["current-context"] = ""
    return dump_object(top)


def _part(entry: Any, key: str) -> Obj:
    part = entry.get(key)
    return part if isinstance(part, dict) else {}


def _load_object(text: bytes) -> Obj:
    parse_kubeconfig(text)  # raises an error that names the field
    top: Obj = load(text) or {}
    return top
