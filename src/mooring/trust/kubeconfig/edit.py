"""Entries put into somebody's kubeconfig, and taken out again, as `kubectl config set-…` and `delete-…` do.

Rules kept here (client-go `clientcmd.ModifyConfig`):
* Entries of the same name are replaced in their place; new ones are put last; all others stay as they are, with whatever they say
  that nobody here knows. Comments and layout are lost, as with kubectl.
* What is no kubeconfig is refused, and left as it is.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from mooring.apimachinery.schema import Obj
from mooring.trust.kubeconfig.model import Kubeconfig
from mooring.trust.kubeconfig.text import dump_object, kubeconfig_object, load, parse_kubeconfig

_LISTS = ("clusters", "contexts", "users")


def merged(text: bytes, made: Kubeconfig, *, use: bool) -> str:
    """`text` with the entries of `made`; with `use` its context is the current one afterwards. Raises KubeconfigError.

    A text that has no current context gets that of `made` in any case.
    """
    top = _top(text)
    new = kubeconfig_object(made)
    for key in _LISTS:
        added = {entry["name"]: entry for entry in new[key] or ()}
        kept = [added.pop(entry.get("name"), entry) for entry in top.get(key) or ()]
        top[key] = [*kept, *added.values()] or None
    if use or not top.get("current-context"):
        top["current-context"] = made.current_context
    return dump_object({"kind": "Config", "apiVersion": "v1"} | top)


def without(text: bytes, names: Collection[str]) -> str:
    """`text` without the users of these names, the contexts that use them, and clusters of these names that nobody else uses.

    Raises KubeconfigError.
    """
    top = _top(text)
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


def _top(text: bytes) -> Obj:
    parse_kubeconfig(text)  # whatever is wrong with it is told by path
    top: Obj = load(text) or {}
    return top
